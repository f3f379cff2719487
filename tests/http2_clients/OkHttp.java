// OkHttp, as Android programs use it.
import java.io.InputStream;
import java.security.SecureRandom;
import java.security.cert.X509Certificate;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.Collections;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.X509TrustManager;
import okhttp3.OkHttpClient;
import okhttp3.Protocol;
import okhttp3.Request;

public class OkHttp {
    public static void main(String[] arguments) throws Exception {
        var length = Long.parseLong(arguments[1]);
        var all = new X509TrustManager() {
            public void checkClientTrusted(X509Certificate[] chain, String type) {}

            public void checkServerTrusted(X509Certificate[] chain, String type) {}

            public X509Certificate[] getAcceptedIssuers() {
                return new X509Certificate[0];
            }
        };
        var context = SSLContext.getInstance("TLS");
        context.init(null, new TrustManager[] {all}, new SecureRandom());
        var client = new OkHttpClient.Builder().sslSocketFactory(context.getSocketFactory(), all)
            .hostnameVerifier((name, session) -> true).readTimeout(60, TimeUnit.SECONDS).build();
        var request = new Request.Builder().url(arguments[0] + "/large.bin").build();
        Callable<Long> download = () -> {
            try (var response = client.newCall(request).execute()) {
                if (response.protocol() != Protocol.HTTP_2) {
                    return -1L;
                }
                InputStream body = response.body().byteStream();
                long count = 0;
                var piece = new byte[1000];
                for (int read; (read = body.read(piece)) > 0; ) {
                    count += read;
                }
                return count;
            }
        };
        expect("a download", download.call(), length);
        var threads = Executors.newFixedThreadPool(20);
        for (var each : threads.invokeAll(Collections.nCopies(20, download))) {
            expect("20 at once", each.get(), length);
        }
        System.exit(0);
    }

    static void expect(String what, long count, long wanted) {
        if (count != wanted) {
            System.out.println(what + ": " + count + " of " + wanted);
            System.exit(1);
        }
    }
}
