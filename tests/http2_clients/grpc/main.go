// grpc-go: a stream of small messages in each direction. It measures the network with PING frames while data comes.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Messages are bytes, so that no description of them is needed.
type bytesCodec struct{}

func (bytesCodec) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }
func (bytesCodec) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (bytesCodec) Name() string { return "bytes" }

func main() {
	authority := strings.TrimPrefix(os.Args[1], "https://")
	security := grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}))
	connection, err := grpc.Dial(authority, security)
	tell("dial", err)
	// The file that answers has messages of 100 bytes, and no trailer behind them.
	stream := open(connection, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/grpc/messages")
	tell("close", stream.CloseSend())
	received := 0
	for {
		var message []byte
		if err = stream.RecvMsg(&message); err != nil {
			break
		}
		received++
	}
	if received != 200_000 {
		tell("receive", fmt.Errorf("%d messages, then %v", received, err))
	}
	stream = open(connection, &grpc.StreamDesc{ClientStreams: true}, "/grpc/upload")
	for range 10_000 {
		message := []byte("small")
		tell("send", stream.SendMsg(&message))
	}
	tell("close", stream.CloseSend())
	// The answer is a head alone, which gRPC takes for a trailer. Each message had five bytes in front.
	var none []byte
	err = stream.RecvMsg(&none)
	if length := fmt.Sprint(stream.Trailer().Get("x-length")); err != io.EOF || length != "[100000]" {
		tell("upload", fmt.Errorf("the server says %s: %v", length, err))
	}
}

func open(connection *grpc.ClientConn, kind *grpc.StreamDesc, method string) grpc.ClientStream {
	stream, err := connection.NewStream(context.Background(), kind, method, grpc.ForceCodec(bytesCodec{}))
	tell(method, err)
	return stream
}

func tell(what string, err error) {
	if err != nil {
		fmt.Printf("%s: %v\n", what, err)
		os.Exit(1)
	}
}
