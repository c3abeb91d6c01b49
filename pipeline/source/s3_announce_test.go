package source

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/squall-sre/squall/pipeline"
)

const (
	fromS3 = `{"Records":[{"eventVersion":"2.1","eventSource":"aws:s3","awsRegion":"eu-west-1","eventTime":"2026-11-30T17:06:01.123Z",` +
		`"eventName":"ObjectCreated:Put","s3":{"s3SchemaVersion":"1.0","configurationId":"logs","bucket":{"name":"lb-logs",` +
		`"arn":"arn:aws:s3:::lb-logs"},"object":{"key":"AWSLogs/a+b%%3D%%C3%%A9/%s","size":%d,"eTag":"d41d8cd98f00b204e9800998ecf8427e","sequencer":"0A1B"}}}]}`
	fromBridge = `{"version":"0","id":"17793124-05d4-b198-2fde-7ededc63b103","detail-type":"Object Created","source":"aws.s3",` +
		`"account":"111122223333","time":"2026-11-30T17:06:01Z","region":"eu-west-1","resources":["arn:aws:s3:::lb-logs"],` +
		`"detail":{"version":"0","bucket":{"name":"lb-logs"},"object":{"key":"AWSLogs/a+b=%s","size":%d,` +
		`"etag":"d41d8cd98f00b204e9800998ecf8427e","sequencer":"0A1B"},"request-id":"N4N7GDK58NMKJ12R","reason":"PutObject"}}`
)

func TestParseAnnouncement(t *testing.T) {
	plain := fmt.Sprintf(fromS3, "x.gz", 5)
	wrapped, err := json.Marshal(map[string]string{"Type": "Notification", "MessageId": "1", "TopicArn": "arn", "Message": plain})
	if err != nil {
		t.Fatal(err)
	}
	one := announcement{Bucket: "lb-logs", Key: "AWSLogs/a b=é/x.gz", ETag: "d41d8cd98f00b204e9800998ecf8427e", Size: 5,
		At: time.Date(2026, 11, 30, 17, 6, 1, 123e6, time.UTC)}
	bridge := one
	bridge.Key, bridge.At = "AWSLogs/a+b=x.gz", one.At.Truncate(time.Second)
	for _, c := range []struct {
		body string
		want []announcement
		ok   bool
	}{
		{plain, []announcement{one}, true},
		{string(wrapped), []announcement{one}, true},
		{fmt.Sprintf(fromBridge, "x.gz", 5), []announcement{bridge}, true},
		{`{"Service":"Amazon S3","Event":"s3:TestEvent","Time":"2026-11-30T17:06:01.123Z","Bucket":"lb-logs","RequestId":"x","HostId":"y"}`, nil, true},
		{strings.Replace(plain, "ObjectCreated:Put", "ObjectRemoved:Delete", 1), nil, true},
		{strings.Replace(fmt.Sprintf(fromBridge, "x.gz", 5), "Object Created", "Object Deleted", 1), nil, true},
		{strings.Replace(plain, "%3D", "%", 1), nil, false},
		{strings.Replace(plain, `"s3":`, `"s4":`, 1), nil, false},
		{`{"Records":[]}`, nil, false},
		{`{"Records":[{}]}`, nil, false},
		{`{"detail-type":"Object Created","detail":{}}`, nil, false},
		{`{"Type":"Notification","Message":"hello"}`, nil, false},
		{"hello", nil, false},
		{"", nil, false},
		{"[]", nil, false},
	} {
		got, err := parseAnnouncement([]byte(c.body))
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.body, err)
		}
		if diff := cmp.Diff(c.want, got); c.ok && diff != "" {
			t.Errorf("%s: %s", c.body, diff)
		}
	}
}

func FuzzParseAnnouncement(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(fromS3, "x", 1)))
	f.Add([]byte(fmt.Sprintf(fromBridge, "x", 1)))
	f.Add([]byte(`{"Type":"Notification","Message":"{\"Type\":\"Notification\",\"Message\":\"{}\"}"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		list, err := parseAnnouncement(body)
		for _, a := range list {
			if err == nil && (a.Bucket == "" || a.Key == "") {
				t.Errorf("%q announces %+v", body, a)
			}
		}
	})
}

// A queue is a double of SQS: no server of it is to be had that is not a service of AWS. It speaks the JSON
// protocol (X-Amz-Target: AmazonSQS.…) and refuses what SQS refuses: fields that it does not know, values out of
// bounds, receipts of another receive.
type queue struct {
	t *testing.T
	*httptest.Server

	mu       sync.Mutex
	messages []*queued
	receipts int
	deleted  []string // bodies
	hides    int      // requests that hide messages for longer
	emptied  int      // receives that brought nothing
}

type queued struct {
	id, body, receipt string
	visible           time.Time
	received          int
}

func newQueueServer(t *testing.T) *queue {
	q := &queue{t: t}
	q.Server = httptest.NewServer(q)
	t.Cleanup(func() { q.CloseClientConnections(); q.Close() })
	return q
}

func (q *queue) url() string { return q.URL + "/123456789012/logs" }

func (q *queue) send(bodies ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, body := range bodies {
		q.messages = append(q.messages, &queued{id: fmt.Sprintf("message-%d", len(q.messages)), body: body})
	}
}

// ServeHTTP implements http.Handler.
func (q *queue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	refuse := func(code, text string) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.Header().Set("X-Amzn-Query-Error", code+";Sender")
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{"__type": "com.amazonaws.sqs#" + code, "message": text})
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-amz-json-1.0" ||
		!strings.Contains(r.Header.Get("Authorization"), "/sqs/aws4_request") {
		refuse("InvalidAction", "no request of the JSON protocol")
		return
	}
	act := map[string]func(strict *json.Decoder) (any, string){
		"AmazonSQS.ReceiveMessage":               q.receive,
		"AmazonSQS.DeleteMessage":                q.delete,
		"AmazonSQS.ChangeMessageVisibilityBatch": q.change,
	}[r.Header.Get("X-Amz-Target")]
	if act == nil {
		refuse("InvalidAction", r.Header.Get("X-Amz-Target"))
		return
	}
	strict := json.NewDecoder(bytes.NewReader(body))
	strict.DisallowUnknownFields()
	out, wrong := act(strict)
	if wrong != "" {
		refuse(wrong, "refused")
		return
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	_ = json.NewEncoder(w).Encode(out)
}

func (q *queue) receive(strict *json.Decoder) (any, string) {
	var in struct {
		QueueUrl                               string
		MaxNumberOfMessages, VisibilityTimeout int
		WaitTimeSeconds                        int
	}
	if err := strict.Decode(&in); err != nil || in.QueueUrl != q.url() || in.MaxNumberOfMessages < 1 || in.MaxNumberOfMessages > 10 ||
		in.WaitTimeSeconds < 0 || in.WaitTimeSeconds > 20 || in.VisibilityTimeout < 1 || in.VisibilityTimeout > 43200 {
		return nil, "InvalidParameterValue"
	}
	end := time.After(min(time.Duration(in.WaitTimeSeconds)*time.Second, 100*time.Millisecond))
	for {
		if got := q.take(in.MaxNumberOfMessages, time.Duration(in.VisibilityTimeout)*time.Second); len(got) > 0 {
			return map[string]any{"Messages": got}, ""
		}
		select {
		case <-end:
			q.mu.Lock()
			defer q.mu.Unlock()
			q.emptied++
			return map[string]any{}, ""
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (q *queue) take(most int, hide time.Duration) (got []map[string]string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, m := range q.messages {
		if len(got) == most || time.Now().Before(m.visible) {
			continue
		}
		q.receipts++
		m.receipt, m.visible = "receipt-"+strconv.Itoa(q.receipts), time.Now().Add(hide)
		m.received++
		sum := md5.Sum([]byte(m.body))
		got = append(got, map[string]string{
			"MessageId": m.id, "ReceiptHandle": m.receipt, "Body": m.body, "MD5OfBody": hex.EncodeToString(sum[:]),
		})
	}
	return got
}

func (q *queue) find(receipt string) int {
	return slices.IndexFunc(q.messages, func(m *queued) bool { return m.receipt == receipt })
}

func (q *queue) delete(strict *json.Decoder) (any, string) {
	var in struct{ QueueUrl, ReceiptHandle string }
	if err := strict.Decode(&in); err != nil || in.QueueUrl != q.url() {
		return nil, "InvalidParameterValue"
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	i := q.find(in.ReceiptHandle)
	if i < 0 {
		return nil, "ReceiptHandleIsInvalid"
	}
	q.deleted = append(q.deleted, q.messages[i].body)
	q.messages = slices.Delete(q.messages, i, i+1)
	return map[string]any{}, ""
}

func (q *queue) change(strict *json.Decoder) (any, string) {
	var in struct {
		QueueUrl string
		Entries  []struct {
			Id, ReceiptHandle string
			VisibilityTimeout *int
		}
	}
	if err := strict.Decode(&in); err != nil || in.QueueUrl != q.url() || len(in.Entries) < 1 || len(in.Entries) > 10 {
		return nil, "InvalidParameterValue"
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	ok, failed := []map[string]string{}, []map[string]any{}
	for _, e := range in.Entries {
		i := q.find(e.ReceiptHandle)
		if i < 0 || e.VisibilityTimeout == nil || *e.VisibilityTimeout < 0 || *e.VisibilityTimeout > 43200 {
			failed = append(failed, map[string]any{"Id": e.Id, "Code": "ReceiptHandleIsInvalid", "SenderFault": true})
			continue
		}
		if *e.VisibilityTimeout > 0 {
			q.hides++
		}
		q.messages[i].visible = time.Now().Add(time.Duration(*e.VisibilityTimeout) * time.Second)
		ok = append(ok, map[string]string{"Id": e.Id})
	}
	return map[string]any{"Successful": ok, "Failed": failed}, ""
}

func (q *queue) left() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.messages)
}

func (q *queue) count(n *int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return *n
}

// announce makes the message of S3 for a delivery.
func (g *gateway) announce(d delivery) string {
	g.t.Helper()
	body, err := json.Marshal(map[string]any{"Records": []any{map[string]any{
		"eventName": "ObjectCreated:Put", "eventTime": time.Now().UTC(),
		"s3": map[string]any{
			"bucket": map[string]any{"name": testBucket},
			"object": map[string]any{"key": url.QueryEscape(d.key), "size": 100, "eTag": g.etag(d)},
		},
	}}})
	if err != nil {
		g.t.Fatal(err)
	}
	return string(body)
}

func (g *gateway) etag(d delivery) string {
	sum := md5.Sum(zipped(g.t, d.lines))
	return hex.EncodeToString(sum[:])
}

func (g *gateway) withQueue(q *queue, hold holdTimes) *bucket {
	b := g.bucket(func(c *s3Config) { c.QueueURL = q.url() })
	b.hold = hold
	return b
}

var quickHold = holdTimes{hidden: 3 * time.Second, most: time.Minute, gather: 5 * time.Second}

// late is a spool that stores what it took when it is told to.
type late struct {
	*spool
	mu     sync.Mutex
	stored bool
}

// Position implements pipeline.Positions.
func (l *late) Position(id string) (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stored {
		return 0, false
	}
	return l.spool.Position(id)
}

func (l *late) store() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stored = true
}

// Objects are read once and in the order of time, however they are announced, and a message is deleted when its
// object is stored, not before.
func TestSQS(t *testing.T) {
	g, q := startGateway(t), newQueueServer(t)
	all := deliveries(time.Now(), 2, 2, 6, 50)
	g.deliver(all)
	q.send(`{"Service":"Amazon S3","Event":"s3:TestEvent","Bucket":"lb-logs"}`)
	for _, d := range slices.Backward(all) { // the newest first, and each twice
		q.send(g.announce(d), g.announce(d))
	}
	s := &late{spool: newSpool(t)}
	stop := runSource(t, g.withQueue(q, quickHold), s.spool, s)
	s.wantSet(linesOf(all))
	checkOrder(t, s.spool)
	until(t, func() bool { return q.count(&q.hides) > 2*len(all) }, func() string { return "messages are not kept hidden" })
	if n := q.left(); n != 2*len(all) {
		t.Errorf("%d of %d messages are left before anything was stored", n, 2*len(all))
	}
	s.store()
	until(t, func() bool { return q.left() == 0 }, func() string { return fmt.Sprintf("%d messages are left", q.left()) })
	q.send(g.announce(all[3])) // once more, when all is over
	until(t, func() bool { return q.left() == 0 }, func() string { return "a late duplicate is left" })
	stop()
	q.send(g.announce(all[4])) // and after a restart
	stop = runSource(t, g.withQueue(q, quickHold), s.spool, s)
	until(t, func() bool { return q.left() == 0 }, func() string { return "a duplicate is left after a restart" })
	stop()
	s.wantSet(linesOf(all))
	if n := s.ended(); n != len(all) {
		t.Errorf("%d streams have ended", n)
	}
}

// What cannot be read goes back to the queue as often as its redrive policy allows; what is no announcement is
// left there. Both are counted, and keep nothing else.
func TestSQSPoison(t *testing.T) {
	g, q := startGateway(t), newQueueServer(t)
	all := deliveries(time.Now(), 1, 1, 3, 50)
	g.deliver(all)
	other := strings.ReplaceAll(g.announce(all[2]), testBucket, "another-bucket")
	q.send("hello", other, g.announce(all[0]), g.announce(all[1]), g.announce(all[2]))
	g.fail(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, all[1].key) {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>`)
		return true
	})
	s := newSpool(t)
	b := g.withQueue(q, holdTimes{hidden: time.Second, most: 1500 * time.Millisecond, gather: 5 * time.Second})
	runSource(t, b, s, s)
	s.wantSet(linesOf(slices.Concat(all[:1], all[2:])))
	received := func(part string) (n int) {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, m := range q.messages {
			if strings.Contains(m.body, part) {
				n += m.received
			}
		}
		return n
	}
	key := url.QueryEscape(all[1].key)
	until(t, func() bool {
		return q.left() == 3 && received("hello") > 2 && received("another-bucket") > 2 && received(key) > 1
	}, func() string {
		return fmt.Sprintf("%d messages are left; received %d, %d and %d times", q.left(), received("hello"), received("another-bucket"), received(key))
	})
	if n := testutil.ToFloat64(b.rt.Metrics.errors.WithLabelValues("test", errAnnounce)); n < 4 {
		t.Errorf("%v odd messages are counted", n)
	}
	g.fail(nil)
	s.wantSet(linesOf(all))
	until(t, func() bool { return q.left() == 2 }, func() string { return "the message of an object that was read at last is left" })
}

// Stopped amid the reading, nothing comes twice and nothing is lost: what was not stored is announced again.
func TestSQSRestart(t *testing.T) {
	const each = 10000 // lines in an object: more than a block holds
	g, q := startGateway(t), newQueueServer(t)
	all := deliveries(time.Now(), 2, 1, 6, each)
	g.deliver(all)
	for _, d := range all {
		q.send(g.announce(d))
	}
	s := newSpool(t)
	for i := range 5 {
		stop := runSource(t, g.withQueue(q, quickHold), s, s)
		want := min(s.count()+each*2/3+i*each/4, len(all)*each)
		until(t, func() bool { return s.count() >= want }, func() string { return fmt.Sprintf("%d lines", s.count()) })
		stop()
	}
	runSource(t, g.withQueue(q, quickHold), s, s)
	s.wantSet(linesOf(all))
	until(t, func() bool { return q.left() == 0 }, func() string { return fmt.Sprintf("%d messages are left", q.left()) })
	if n := s.count(); n != len(all)*each {
		t.Errorf("%d lines", n)
	}
}

// A queue that cannot be reached is a state.
func TestSQSComesBack(t *testing.T) {
	g, q := startGateway(t), newQueueServer(t)
	all := deliveries(time.Now(), 1, 1, 2, 10)
	g.deliver(all)
	front := httptest.NewServer(nil)
	address := front.URL
	front.Close()
	b := g.bucket(func(c *s3Config) { c.QueueURL = address + "/123456789012/logs" })
	s := newSpool(t)
	stop := runSource(t, b, s, s)
	until(t, func() bool { return strings.Contains(b.States()[0].Err, errReceive+": ") }, func() string { return fmt.Sprint(b.States()) })
	stop()
	q.send(g.announce(all[0]), g.announce(all[1]))
	b = g.withQueue(q, quickHold)
	runSource(t, b, s, s)
	s.wantSet(linesOf(all))
	until(t, func() bool { return b.States()[0].State == "idle" }, func() string { return fmt.Sprint(b.States()) })
}

var _ pipeline.Positions = (*late)(nil)
