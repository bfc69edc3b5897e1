// A client of polybus's native wire in one file, with nothing but the standard library.
// The wire is described in docs/protocols/native.md.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Kinds of frames that this client sends or understands.
const (
	kindHello       = 0x01
	kindPing        = 0x02
	kindPong        = 0x03
	kindOk          = 0x05
	kindError       = 0x06
	kindRegister    = 0x10
	kindCall        = 0x12
	kindReply       = 0x13
	kindSubscribe   = 0x20
	kindPublish     = 0x22
	kindPublication = 0x23
	kindProduce     = 0x30
	kindProduced    = 0x31
)

const (
	preface       = "PBUS\x01"
	headerBytes   = 24
	maxFrame      = 64 << 20 // what a node takes by default
	flagMore      = 1        // of a Reply: other parts follow
	flagCreate    = 1        // of a Produce: declare a missing topic
	flagNoAnswer  = 1        // of a Call: nobody waits
	statusOK      = 0
	statusFailed  = 3
	helloDeadline = 5 * time.Second
)

type frame struct {
	kind, flags byte
	id          uint64
	argument    uint32
	name        string
	payload     []byte
}

func (f frame) encode(meta []byte) []byte {
	length := headerBytes + len(f.name) + len(meta) + len(f.payload)
	out := make([]byte, headerBytes, length)
	binary.BigEndian.PutUint32(out[0:], uint32(length-4))
	out[4], out[5] = f.kind, f.flags
	binary.BigEndian.PutUint16(out[6:], uint16(len(f.name)))
	binary.BigEndian.PutUint64(out[8:], f.id)
	binary.BigEndian.PutUint32(out[16:], f.argument)
	binary.BigEndian.PutUint32(out[20:], uint32(len(meta)))
	return append(append(append(out, f.name...), meta...), f.payload...)
}

func readFrame(in io.Reader) (frame, error) {
	var head [headerBytes]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return frame{}, err
	}
	length := binary.BigEndian.Uint32(head[0:])
	name := uint32(binary.BigEndian.Uint16(head[6:]))
	meta := binary.BigEndian.Uint32(head[20:])
	if length > maxFrame || meta > maxFrame || length < headerBytes-4+name+meta {
		return frame{}, errors.New("the node sent lengths that contradict each other")
	}
	rest := make([]byte, length-(headerBytes-4))
	if _, err := io.ReadFull(in, rest); err != nil {
		return frame{}, err
	}
	return frame{
		kind: head[4], flags: head[5],
		id:       binary.BigEndian.Uint64(head[8:]),
		argument: binary.BigEndian.Uint32(head[16:]),
		name:     string(rest[:name]),
		payload:  rest[name+meta:], // the meta map in between is not needed here
	}, nil
}

// Handler answers a call.
type Handler func(body []byte) ([]byte, error)

// Sink takes publications; it must return at once.
type Sink func(name string, body []byte)

// Client is one connection. Its methods may be used by many goroutines.
type Client struct {
	conn     net.Conn
	mu       sync.Mutex // guards all below, and writes to conn
	nextID   uint64
	waiting  map[uint64]chan frame
	handlers map[string]Handler
	sink     Sink
	lost     error
}

// Dial connects, exchanges greetings and begins to read.
func Dial(address string) (*Client, error) {
	conn, err := net.DialTimeout("tcp", address, helloDeadline)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn, waiting: map[uint64]chan frame{}, handlers: map[string]Handler{}}
	hello := frame{kind: kindHello}.encode(helloMeta("example in Go"))
	conn.SetDeadline(time.Now().Add(helloDeadline))
	if _, err = conn.Write(append([]byte(preface), hello...)); err != nil {
		conn.Close()
		return nil, err
	}
	in := bufio.NewReader(conn)
	answer := make([]byte, len(preface))
	if _, err = io.ReadFull(in, answer); err == nil && string(answer) != preface {
		err = fmt.Errorf("no node of this version answers at %s", address)
	}
	var first frame
	if err == nil {
		first, err = readFrame(in)
	}
	if err == nil && first.kind != kindHello {
		err = fmt.Errorf("the node refuses us: %s", first.payload)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	go c.read(in)
	return c, nil
}

// Close ends the connection; what waits fails.
func (c *Client) Close() error { return c.conn.Close() }

// Call asks a service and waits for its whole reply.
func (c *Client) Call(name string, body []byte, timeout time.Duration) ([]byte, error) {
	request := frame{kind: kindCall, name: name, payload: body, argument: uint32(timeout.Milliseconds())}
	answers, id, err := c.send(request, nil)
	if err != nil {
		return nil, err
	}
	defer c.forget(id)
	var whole []byte
	for answer := range answers {
		if answer.kind != kindReply || answer.argument != statusOK {
			return nil, problem(answer)
		}
		whole = append(whole, answer.payload...)
		if answer.flags&flagMore == 0 {
			return whole, nil
		}
	}
	return nil, c.reason()
}

// Serve answers calls to a name until the connection ends.
func (c *Client) Serve(name string, handler Handler) error {
	c.mu.Lock()
	c.handlers[name] = handler
	c.mu.Unlock()
	_, err := c.ask(frame{kind: kindRegister, name: name})
	return err
}

// Subscribe passes what is published to a pattern to the sink; a client has one sink.
func (c *Client) Subscribe(pattern string, sink Sink) error {
	c.mu.Lock()
	c.sink = sink
	c.mu.Unlock()
	_, err := c.ask(frame{kind: kindSubscribe, name: pattern})
	return err
}

// Publish reaches everybody who has subscribed, at most once each.
func (c *Client) Publish(name string, body []byte) error {
	_, err := c.ask(frame{kind: kindPublish, name: name, payload: body})
	return err
}

// Produce stores a record and returns its offset, once it is on disk.
func (c *Client) Produce(topic string, body []byte) (uint64, error) {
	record := append([]byte{0x91, 0x91}, packBytes(body)...) // an array of one record, an array of one element
	answer, err := c.ask(frame{kind: kindProduce, flags: flagCreate, name: topic, payload: record})
	if err != nil {
		return 0, err
	}
	if answer.kind != kindProduced || len(answer.payload) != 8 {
		return 0, errors.New("the node did not answer with an offset")
	}
	return binary.BigEndian.Uint64(answer.payload), nil
}

func (c *Client) ask(request frame) (frame, error) {
	answers, id, err := c.send(request, nil)
	if err != nil {
		return frame{}, err
	}
	defer c.forget(id)
	answer, open := <-answers
	if !open {
		return frame{}, c.reason()
	}
	if answer.kind == kindError {
		return frame{}, problem(answer)
	}
	return answer, nil
}

func (c *Client) send(request frame, meta []byte) (chan frame, uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost != nil {
		return nil, 0, c.lost
	}
	c.nextID++
	request.id = c.nextID
	answers := make(chan frame, 64)
	c.waiting[request.id] = answers
	_, err := c.conn.Write(request.encode(meta))
	return answers, request.id, err
}

func (c *Client) write(answer frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn.Write(answer.encode(nil)) // a failure shows in read
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	delete(c.waiting, id)
	c.mu.Unlock()
}

func (c *Client) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

func (c *Client) read(in io.Reader) {
	for {
		got, err := readFrame(in)
		if err != nil {
			c.fail(fmt.Errorf("connection lost: %w", err))
			return
		}
		switch got.kind {
		case kindPing:
			c.write(frame{kind: kindPong, id: got.id})
		case kindCall:
			go c.serve(got)
		case kindPublication:
			c.mu.Lock()
			sink := c.sink
			c.mu.Unlock()
			sink(got.name, got.payload)
		case kindOk, kindReply, kindError, kindProduced:
			c.mu.Lock()
			answers := c.waiting[got.id]
			c.mu.Unlock()
			if answers != nil {
				answers <- got
			} else if got.kind == kindError && got.id == 0 {
				c.fail(problem(got))
				return
			}
		}
	}
}

func (c *Client) serve(call frame) {
	c.mu.Lock()
	handler := c.handlers[call.name]
	c.mu.Unlock()
	answer := frame{kind: kindReply, id: call.id}
	body, err := handler(call.payload)
	if answer.payload = body; err != nil {
		answer.argument, answer.payload = statusFailed, []byte(err.Error())
	}
	if call.flags&flagNoAnswer == 0 {
		c.write(answer)
	}
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = err
	for id, answers := range c.waiting {
		delete(c.waiting, id)
		close(answers)
	}
}

func problem(answer frame) error {
	if answer.kind == kindReply {
		return fmt.Errorf("status %d: %s", answer.argument, answer.payload)
	}
	return fmt.Errorf("error %d: %s", answer.argument, answer.payload)
}

// helloMeta is the MessagePack map {"versions": [1], "agent": agent}; an agent of up to 31 bytes.
func helloMeta(agent string) []byte {
	out := append([]byte{0x82, 0xa8}, "versions"...)
	out = append(append(out, 0x91, 0x01, 0xa5), "agent"...)
	return append(append(out, 0xa0|byte(len(agent))), agent...)
}

// packBytes is MessagePack's form of bytes.
func packBytes(body []byte) []byte {
	head := []byte{0xc6, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[1:], uint32(len(body)))
	return append(head, body...)
}
