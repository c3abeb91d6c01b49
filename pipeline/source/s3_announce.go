package source

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"go.uber.org/zap"
)

const (
	maxHeld      = 1000 // messages dealt with at a time
	longPoll     = 20   // seconds
	messageBatch = 10   // messages in a request, at most
)

// holdTimes are how long messages are dealt with.
type holdTimes struct {
	hidden time.Duration // how long a message is kept from other receivers at a time, in whole seconds
	most   time.Duration // then a message whose object cannot be read goes back to its queue
	gather time.Duration // the longest that messages are gathered before the oldest object is read
}

var defaultHold = holdTimes{hidden: 2 * time.Minute, most: 10 * time.Minute, gather: 10 * time.Second}

// A held message is deleted when all that it announces is stored. It is never deleted otherwise: what cannot be
// read goes back to the queue, whose redrive policy counts.
type held struct {
	id, receipt        string
	received, extended time.Time
	streams            []string // of the objects that it announces
}

// An inbox holds messages. It is safe for concurrent use.
type inbox struct {
	now  func() time.Time
	mu   sync.Mutex
	held map[string]*held // by message ID
	odd  string           // what was wrong with the last message that is none of ours
}

func newInbox(now func() time.Time) *inbox { return &inbox{now: now, held: map[string]*held{}} }

// put holds a message; one that is held already has a new receipt.
func (in *inbox) put(m *held) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if old := in.held[m.id]; old != nil {
		m.received = old.received
	}
	in.held[m.id] = m
}

func (in *inbox) drop(id string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.held, id)
}

func (in *inbox) size() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.held)
}

// all copies the messages, the longest held first.
func (in *inbox) all() []held {
	in.mu.Lock()
	defer in.mu.Unlock()
	var all []held
	for _, m := range in.held {
		all = append(all, *m)
	}
	slices.SortFunc(all, func(a, b held) int { return cmp.Or(a.received.Compare(b.received), cmp.Compare(a.id, b.id)) })
	return all
}

func (in *inbox) extended(id string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if m := in.held[id]; m != nil {
		m.extended = in.now()
	}
}

// isNew tells whether text is not what was odd before.
func (in *inbox) isNew(text string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	last := in.odd
	in.odd = text
	return text != last
}

// receive takes announcements from the queue. They come in no order, so what is to be read first is known only
// when the queue has been emptied, or when enough was gathered.
func (b *bucket) receive(ctx context.Context) error {
	var gathering time.Time
	for failures := 0; ctx.Err() == nil; {
		if b.inbox.size() > maxHeld-messageBatch {
			b.queue.settle(true)
			waitFor(ctx, b.rt.Poll)
			continue
		}
		wait := int32(longPoll)
		if !b.queue.isSettled() {
			wait = 1
		}
		out, err := b.sqs.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: &b.cfg.QueueURL, MaxNumberOfMessages: messageBatch, WaitTimeSeconds: wait,
			VisibilityTimeout: int32(b.hold.hidden / time.Second),
		})
		if ctx.Err() != nil {
			break
		}
		b.tell(errReceive, err)
		if err != nil {
			failures++
			waitFor(ctx, b.again.after(failures))
			continue
		}
		failures = 0
		now := b.rt.Now()
		switch {
		case len(out.Messages) == 0:
			gathering = time.Time{}
			b.queue.settle(true)
		case gathering.IsZero():
			gathering = now
			b.queue.settle(false)
		case now.Sub(gathering) > b.hold.gather:
			b.queue.settle(true)
		}
		for _, m := range out.Messages {
			b.announced(m)
		}
		b.gauge()
	}
	return nil
}

// announced takes up the objects that a message tells of.
func (b *bucket) announced(m types.Message) {
	list, err := parseAnnouncement([]byte(aws.ToString(m.Body)))
	now := b.rt.Now()
	h := &held{id: aws.ToString(m.MessageId), receipt: aws.ToString(m.ReceiptHandle), received: now, extended: now}
	for _, a := range list {
		switch {
		case a.Bucket != b.cfg.Bucket:
			err = fmt.Errorf("it is about the bucket %.64q", a.Bucket)
		case strings.HasPrefix(a.Key, b.cfg.Prefix) && isLog(a.Key, a.Size):
			at, _ := objectTime(a.Key, a.At)
			o := b.object(a.Key, a.ETag, a.Size, at, true)
			h.streams = append(h.streams, o.stream.ID)
			b.queue.add(o)
		}
	}
	if err != nil {
		b.meter.failed(errAnnounce)
		if b.inbox.isNew(err.Error()) {
			b.log.Warn("a message announces no object of the bucket and is left in its queue", zap.Error(err))
		}
		return
	}
	b.inbox.put(h)
}

// keep deletes the messages whose objects are stored, and keeps the others hidden.
func (b *bucket) keep(ctx context.Context) error {
	for waitFor(ctx, b.rt.Poll) {
		err := b.keepOnce(ctx)
		if ctx.Err() == nil {
			b.tell(errSettle, err)
			if err != nil {
				waitFor(ctx, b.again.least)
			}
		}
		b.queue.forget(0, maxDone)
	}
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), 500*time.Millisecond)
	defer cancel()
	_ = b.hide(back, b.inbox.all(), 0) // who starts next need not wait for them; else they come back in time
	return nil
}

func (b *bucket) keepOnce(ctx context.Context) error {
	var extend []held
	for _, m := range b.inbox.all() {
		switch {
		case b.areStored(m.streams):
			_, err := b.sqs.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &b.cfg.QueueURL, ReceiptHandle: &m.receipt})
			if err != nil && !isStale(err) {
				return err
			}
			b.inbox.drop(m.id)
		case b.rt.Now().Sub(m.received) > b.hold.most && b.giveBack(m.streams):
			b.inbox.drop(m.id)
		case b.rt.Now().Sub(m.extended) > b.hold.hidden/3:
			extend = append(extend, m)
		}
	}
	return b.hide(ctx, extend, b.hold.hidden)
}

// isStale tells that the queue has given the message to another receiver meanwhile: it comes again.
func isStale(err error) bool {
	return slices.Contains([]string{"ReceiptHandleIsInvalid", "InvalidParameterValue"}, code(err))
}

// areStored tells whether all lines of these objects are in the spool.
func (b *bucket) areStored(streams []string) bool {
	for _, id := range streams {
		end, ok := b.queue.end(id)
		if !ok {
			return false
		}
		if at, known := b.positions.Position(id); !known || at < end {
			return false
		}
	}
	return true
}

// giveBack tells whether one of these objects cannot be read, or was read and never stored.
func (b *bucket) giveBack(streams []string) bool {
	back := false
	for _, id := range streams {
		_, done := b.queue.end(id)
		back = b.queue.drop(id) || done || back
	}
	return back
}

// hide keeps messages from other receivers for some time from now.
func (b *bucket) hide(ctx context.Context, messages []held, d time.Duration) error {
	for batch := range slices.Chunk(messages, messageBatch) {
		in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &b.cfg.QueueURL}
		for i, m := range batch {
			in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
				Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &m.receipt, VisibilityTimeout: int32(d / time.Second),
			})
		}
		out, err := b.sqs.ChangeMessageVisibilityBatch(ctx, in)
		if err != nil {
			return err
		}
		lost := map[string]bool{}
		for _, f := range out.Failed { // deleted, or given to another receiver: it comes again, or it is done
			lost[aws.ToString(f.Id)] = true
		}
		for i, m := range batch {
			if lost[strconv.Itoa(i)] {
				b.inbox.drop(m.id)
			} else {
				b.inbox.extended(m.id)
			}
		}
	}
	return nil
}

// An announcement is one object that a message tells of.
type announcement struct {
	Bucket, Key, ETag string
	Size              int64
	At                time.Time
}

// unknownSize stands for what an announcement does not tell; the object is then asked.
const unknownSize = 1

var errNoAnnouncement = errors.New("it is no notification of S3")

// parseAnnouncement reads what S3 sends to a queue by itself, by SNS, or by EventBridge. What tells of no new
// object (the test that S3 sends first, a deletion) gives none.
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/notification-content-structure.html
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/ev-events.html
func parseAnnouncement(body []byte) ([]announcement, error) {
	var m struct {
		Type, Message, Event string // SNS; the test
		Records              []struct {
			EventName string    `json:"eventName"`
			EventTime time.Time `json:"eventTime"`
			S3        *s3Entity `json:"s3"`
		}
		DetailType string    `json:"detail-type"`
		Time       time.Time `json:"time"`
		Detail     *s3Entity `json:"detail"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, errNoAnnouncement
	}
	switch {
	case m.Type == "Notification" && m.Message != "":
		return parseAnnouncement([]byte(m.Message))
	case m.Event == "s3:TestEvent":
		return nil, nil
	case m.Detail != nil && m.DetailType != "":
		if m.DetailType != "Object Created" {
			return nil, nil
		}
		a, err := m.Detail.announcement(m.Time)
		return []announcement{a}, err
	case len(m.Records) == 0:
		return nil, errNoAnnouncement
	}
	var all []announcement
	for _, r := range m.Records {
		if r.S3 == nil {
			return nil, errNoAnnouncement
		}
		if !strings.HasPrefix(strings.TrimPrefix(r.EventName, "s3:"), "ObjectCreated:") {
			continue
		}
		key, err := url.QueryUnescape(r.S3.Object.Key) // here keys are encoded as in a query, and only here
		if err != nil {
			return nil, errNoAnnouncement
		}
		r.S3.Object.Key = key
		a, err := r.S3.announcement(r.EventTime)
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// s3Entity is the part that both forms of notification share.
type s3Entity struct {
	Bucket struct{ Name string }
	Object struct {
		Key, ETag string // encoding/json takes eTag and etag alike
		Size      *int64
	}
}

func (e *s3Entity) announcement(at time.Time) (announcement, error) {
	if e.Bucket.Name == "" || e.Object.Key == "" {
		return announcement{}, errNoAnnouncement
	}
	a := announcement{Bucket: e.Bucket.Name, Key: e.Object.Key, ETag: e.Object.ETag, Size: unknownSize, At: at}
	if e.Object.Size != nil {
		a.Size = *e.Object.Size
	}
	return a, nil
}
