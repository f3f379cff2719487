// Go's net/http: downloads that read in small pieces, a hundred at once, and an upload of small writes.
package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

func main() {
	origin, length := os.Args[1], number(os.Args[2])
	client := &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
	}}
	get := func(read func(io.Reader) (int64, error)) error {
		response, err := client.Get(origin + "/large.bin")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		count, err := read(response.Body)
		if err == nil && (count != length || response.ProtoMajor != 2) {
			err = fmt.Errorf("%d bytes over %s", count, response.Proto)
		}
		return err
	}
	pieces := func(size int) func(io.Reader) (int64, error) {
		return func(body io.Reader) (int64, error) {
			return io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{body}, make([]byte, size))
		}
	}
	for _, size := range []int{512, 4096, 8192, 32768} {
		tell(fmt.Sprintf("%d bytes at a time", size), get(pieces(size)))
	}
	tell("bufio", get(func(body io.Reader) (int64, error) {
		return bufio.NewReaderSize(body, 4096).WriteTo(struct{ io.Writer }{io.Discard})
	}))
	var all sync.WaitGroup
	failed := make(chan error, 100)
	for range 100 {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := get(pieces(4096)); err != nil {
				failed <- err
			}
		}()
	}
	all.Wait()
	close(failed)
	tell("100 at once", <-failed)
	tell("an upload of 10,000 writes of 20 bytes", upload(client, origin, 10_000, 20))
}

func upload(client *http.Client, origin string, writes, size int) error {
	body, writer := io.Pipe()
	go func() {
		for range writes {
			writer.Write(make([]byte, size))
		}
		writer.Close()
	}()
	response, err := client.Post(origin+"/upload", "application/octet-stream", body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && strings.TrimSpace(string(answer)) != strconv.Itoa(writes*size) {
		err = fmt.Errorf("the server says %s", answer)
	}
	return err
}

func tell(what string, err error) {
	if err != nil {
		fmt.Printf("%s: %v\n", what, err)
		os.Exit(1)
	}
}

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	tell(text, err)
	return value
}
