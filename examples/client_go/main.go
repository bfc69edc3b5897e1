package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"
)

// Usage: client [host:port]
func main() {
	address := "127.0.0.1:15555"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if err := run(address); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(address string) error {
	client, err := Dial(address)
	if err != nil {
		return err
	}
	defer client.Close()

	err = client.Serve("go/upper", func(body []byte) ([]byte, error) {
		if len(body) == 0 {
			return nil, errors.New("nothing to do")
		}
		return bytes.ToUpper(body), nil
	})
	if err != nil {
		return err
	}
	reply, err := client.Call("go/upper", []byte("hello"), 5*time.Second)
	if err != nil {
		return err
	}
	fmt.Printf("called: %s\n", reply)
	_, err = client.Call("go/upper", nil, 5*time.Second)
	fmt.Printf("called with nothing: %v\n", err)
	_, err = client.Call("go/absent", nil, 5*time.Second)
	fmt.Printf("called nobody: %v\n", err)

	heard := make(chan string, 1)
	err = client.Subscribe("go/news/*", func(name string, body []byte) {
		heard <- fmt.Sprintf("%s %s", name, body)
	})
	if err == nil {
		err = client.Publish("go/news/today", []byte("none"))
	}
	if err != nil {
		return err
	}
	fmt.Println("heard:", <-heard)

	offset, err := client.Produce("go-orders", []byte("tea"))
	if err != nil {
		return err
	}
	fmt.Println("stored at offset", offset)
	return nil
}
