// Java's own HttpClient, with the smallest windows that it allows.
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.SecureRandom;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.X509TrustManager;

public class JdkClient {
    public static void main(String[] arguments) throws Exception {
        System.setProperty("jdk.internal.httpclient.disableHostnameVerification", "true");
        System.setProperty("jdk.httpclient.windowsize", "16384");
        System.setProperty("jdk.httpclient.connectionWindowSize", "65535");
        var length = Long.parseLong(arguments[1]);
        var client = HttpClient.newBuilder().sslContext(trusting()).version(HttpClient.Version.HTTP_2).build();
        var request = HttpRequest.newBuilder(URI.create(arguments[0] + "/large.bin")).build();
        for (int size : new int[] {512, 8192}) {
            var response = client.send(request, HttpResponse.BodyHandlers.ofInputStream());
            expect("protocol", response.version() == HttpClient.Version.HTTP_2 ? 2 : 1, 2);
            expect(size + " bytes at a time", count(response.body(), size), length);
        }
        List<CompletableFuture<HttpResponse<byte[]>>> all = new ArrayList<>();
        for (int number = 0; number < 20; number++) {
            all.add(client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray()));
        }
        for (var each : all) {
            expect("20 at once", each.get().body().length, length);
        }
        System.exit(0);
    }

    static long count(InputStream body, int size) throws Exception {
        long count = 0;
        var piece = new byte[size];
        for (int read; (read = body.read(piece)) > 0; ) {
            count += read;
        }
        return count;
    }

    static void expect(String what, long count, long wanted) {
        if (count != wanted) {
            System.out.println(what + ": " + count + " of " + wanted);
            System.exit(1);
        }
    }

    static SSLContext trusting() throws Exception {
        var all = new X509TrustManager() {
            public void checkClientTrusted(X509Certificate[] chain, String type) {}

            public void checkServerTrusted(X509Certificate[] chain, String type) {}

            public X509Certificate[] getAcceptedIssuers() {
                return new X509Certificate[0];
            }
        };
        var context = SSLContext.getInstance("TLS");
        context.init(null, new TrustManager[] {all}, new SecureRandom());
        return context;
    }
}
