// Jetty's low-level client: the flow control that gives back each frame, and the one that gives back half a window.
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.eclipse.jetty.http.HttpFields;
import org.eclipse.jetty.http.HttpURI;
import org.eclipse.jetty.http.HttpVersion;
import org.eclipse.jetty.http.MetaData;
import org.eclipse.jetty.http2.BufferingFlowControlStrategy;
import org.eclipse.jetty.http2.FlowControlStrategy;
import org.eclipse.jetty.http2.SimpleFlowControlStrategy;
import org.eclipse.jetty.http2.api.Session;
import org.eclipse.jetty.http2.api.Stream;
import org.eclipse.jetty.http2.client.HTTP2Client;
import org.eclipse.jetty.http2.frames.DataFrame;
import org.eclipse.jetty.http2.frames.HeadersFrame;
import org.eclipse.jetty.http2.frames.ResetFrame;
import org.eclipse.jetty.util.Callback;
import org.eclipse.jetty.util.FuturePromise;
import org.eclipse.jetty.util.Promise;
import org.eclipse.jetty.util.ssl.SslContextFactory;

public class Jetty {
    public static void main(String[] arguments) throws Exception {
        var length = Long.parseLong(arguments[1]);
        download("each frame", new SimpleFlowControlStrategy(), arguments[0], length);
        download("half a window", new BufferingFlowControlStrategy(0.5f), arguments[0], length);
        System.exit(0);
    }

    static void download(String what, FlowControlStrategy strategy, String origin, long length) throws Exception {
        var client = new HTTP2Client();
        client.setInitialSessionRecvWindow(65535);
        client.setInitialStreamRecvWindow(65535);
        client.setFlowControlStrategyFactory(() -> strategy);
        var tls = new SslContextFactory.Client(true);
        client.addBean(tls);
        client.start();
        var uri = URI.create(origin);
        var session = new FuturePromise<Session>();
        var address = new InetSocketAddress(uri.getHost(), uri.getPort());
        client.connect(tls, address, new Session.Listener.Adapter(), session);
        var request = new MetaData.Request("GET", new HttpURI(origin + "/large.bin"), HttpVersion.HTTP_2, new HttpFields());
        var done = new CompletableFuture<Long>();
        session.get(20, TimeUnit.SECONDS).newStream(new HeadersFrame(request, null, true), new Promise.Adapter<>(),
            new Stream.Listener.Adapter() {
                long count;

                @Override
                public void onData(Stream stream, DataFrame frame, Callback callback) {
                    count += frame.remaining();
                    callback.succeeded();
                    if (frame.isEndStream()) {
                        done.complete(count);
                    }
                }

                @Override
                public void onReset(Stream stream, ResetFrame frame) {
                    done.complete(count);
                }
            });
        var count = done.get(120, TimeUnit.SECONDS);
        if (count != length) {
            System.out.println(what + ": " + count + " of " + length);
            System.exit(1);
        }
        client.stop();
    }
}
