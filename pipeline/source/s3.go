package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// s3Config is the configuration of the kind s3.
type s3Config struct {
	Common `yaml:",inline"`

	Bucket   string        `yaml:"bucket"`
	Prefix   string        `yaml:"prefix"`        // of the keys that are read
	QueueURL string        `yaml:"sqs_queue_url"` // where S3 announces objects; empty: they are listed
	Endpoint string        `yaml:"endpoint"`      // of a server that is not AWS; buckets are then paths
	Region   string        `yaml:"region"`        // empty: the environment's, or the queue's
	Poll     time.Duration `yaml:"poll"`          // between two listings
	MaxAge   time.Duration `yaml:"max_age"`       // how far a listing goes back: before the newest object that was read, or before now where none was
}

// newS3 builds the kind s3: the files that AWS delivers for ALB, NLB, CloudFront and WAF, found by listing or
// announced by SQS.
func newS3(decode func(any) error, rt Runtime) (Source, error) {
	cfg := s3Config{Common: defaultCommon(rt), Poll: time.Minute, MaxAge: time.Hour}
	cfg.Lateness = 10 * time.Minute // a balancer delivers every 5 minutes, each of its nodes when it likes
	if err := decode(&cfg); err != nil {
		return nil, err
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	switch {
	case cfg.Bucket == "":
		return nil, errors.New("bucket is missing: write the name of the bucket that AWS delivers to")
	case strings.ContainsAny(cfg.Bucket, "/ "):
		return nil, fmt.Errorf("bucket %q is not a bucket's name", cfg.Bucket)
	case strings.HasPrefix(cfg.Prefix, "/"):
		return nil, fmt.Errorf("prefix %q: keys do not begin with /", cfg.Prefix)
	case cfg.Poll < time.Second:
		return nil, fmt.Errorf("poll %s is less than 1s", cfg.Poll)
	case cfg.MaxAge < time.Minute:
		return nil, fmt.Errorf("max_age %s is less than 1m", cfg.MaxAge)
	}
	for key, text := range map[string]string{"endpoint": cfg.Endpoint, "sqs_queue_url": cfg.QueueURL} {
		if u, err := url.Parse(text); text != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
			return nil, fmt.Errorf("%s %q is not an http or https URL", key, text)
		}
	}
	return newBucket(cfg, rt), nil
}

const (
	readers    = 4       // objects read at a time
	maxQueued  = 10000   // objects that wait; with more, the newest are found by a later listing
	maxDone    = 1 << 15 // objects remembered as read, of those that were announced
	maxShown   = 20      // failed objects that States lists
	stallLimit = time.Minute
)

// What fails, as label values.
const (
	errConfigure = "configure" // the environment's credentials or profile
	errList      = "list"
	errGet       = "get"
	errReceive   = "receive"      // announcements
	errSettle    = "settle"       // deleting announcements and keeping them hidden
	errAnnounce  = "announcement" // one that is none, or of another bucket: left in the queue
)

var bucketErrors = []string{errConfigure, errList, errGet, errReceive, errSettle, errAnnounce}

// A bucket reads the objects of one bucket. One goroutine finds them, a few read, and with a queue one more
// sees to the announcements.
type bucket struct {
	cfg    s3Config
	rt     Runtime
	meter  *meter
	log    *zap.Logger
	limits limits
	again  backoff
	hold   holdTimes
	queue  *objectQueue
	inbox  *inbox

	// Set by Run.
	store     *s3.Client
	sqs       *sqs.Client
	positions pipeline.Positions
	emit      pipeline.Emit
	resumed   time.Time // of the newest object that an earlier run had begun

	mu     sync.Mutex
	faults map[string]string // what fails now, and why
}

func newBucket(cfg s3Config, rt Runtime) *bucket {
	for _, reason := range bucketErrors {
		rt.Metrics.errors.WithLabelValues(cfg.Name, reason)
	}
	again := backoff{time.Second, time.Minute}
	return &bucket{
		cfg: cfg, rt: rt, meter: rt.Metrics.of(cfg.Name), limits: defaultLimits, again: again, hold: defaultHold,
		log:   rt.Logger.With(zap.String("component", "source"), zap.String("input", cfg.Name)),
		queue: newObjectQueue(rt.Now, cfg.Lateness/4, again), inbox: newInbox(rt.Now), faults: map[string]string{},
	}
}

// Common implements Source.
func (b *bucket) Common() Common { return b.cfg.Common }

// Run implements pipeline.Source.
func (b *bucket) Run(ctx context.Context, positions pipeline.Positions, emit pipeline.Emit) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	b.positions, b.emit = positions, emit
	client := b.connect(ctx)
	if client == nil {
		return nil
	}
	defer client.CloseIdleConnections()
	if b.cfg.QueueURL == "" {
		for _, id := range positions.Streams(b.cfg.Name) {
			if at, ok := streamTime(id); ok && at.After(b.resumed) {
				b.resumed = at
			}
		}
	}
	var wg sync.WaitGroup
	part := func(run func(context.Context) error) {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				end(err)
			}
		})
	}
	for range readers {
		part(b.read)
	}
	if b.cfg.QueueURL == "" {
		part(b.discover)
	} else {
		part(b.receive)
		part(b.keep)
	}
	wg.Wait()
	b.meter.zero()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// connect makes the clients, with the credentials and certificates that the SDK finds. It tries until it can; nil
// when ctx ended before.
func (b *bucket) connect(ctx context.Context) *http.Client {
	for failures := 1; ctx.Err() == nil; failures++ {
		cfg, err := config.LoadDefaultConfig(ctx, config.WithRegion(b.cfg.Region),
			config.WithLogger(logging.Nop{}), // what it would say comes as errors too
			config.WithRetryer(func() aws.Retryer {
				return retry.NewStandard(func(o *retry.StandardOptions) { o.MaxAttempts, o.MaxBackoff = 3, time.Second })
			}))
		b.tell(errConfigure, err)
		if err == nil {
			return b.connectWith(cfg)
		}
		waitFor(ctx, b.again.after(failures))
	}
	return nil
}

func (b *bucket) connectWith(cfg aws.Config) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if own, ok := cfg.HTTPClient.(interface{ GetTransport() *http.Transport }); ok {
		transport = own.GetTransport() // it knows AWS_CA_BUNDLE
	}
	transport.ResponseHeaderTimeout = stallLimit
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	cfg.HTTPClient = client
	queue, err := url.Parse(b.cfg.QueueURL)
	if err != nil {
		queue = &url.URL{} // it was checked
	}
	if part := strings.Split(queue.Host, "."); cfg.Region == "" && len(part) > 2 && part[0] == "sqs" {
		cfg.Region = part[1]
	}
	cfg.Region = cmp.Or(cfg.Region, "us-east-1")
	b.store = s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired // archives have their own
		if b.cfg.Endpoint != "" {
			o.BaseEndpoint, o.UsePathStyle = aws.String(b.cfg.Endpoint), true
		}
	})
	b.sqs = sqs.NewFromConfig(cfg, func(o *sqs.Options) {
		if queue.Host != "" {
			o.BaseEndpoint = aws.String(queue.Scheme + "://" + queue.Host)
		}
	})
	return client
}

// waitFor waits; it tells whether ctx goes on.
func waitFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// tell notes whether something fails, and logs each change once.
func (b *bucket) tell(what string, err error) {
	text := ""
	if err != nil {
		text = what + ": " + reason(err)
		b.meter.failed(what)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.faults[what] == text {
		return
	}
	if text == "" {
		delete(b.faults, what)
		b.log.Info("the bucket is read again", zap.String("bucket", b.cfg.Bucket), zap.String("operation", what))
		return
	}
	b.faults[what] = text
	b.log.Warn("cannot read the bucket, trying on", zap.String("bucket", b.cfg.Bucket),
		zap.String("operation", what), zap.Error(err))
}

// reason is the part of an error that is the same as long as its cause is: AWS's errors hold a number of the
// request, and those of the network a port.
func reason(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return fmt.Sprintf("%s: %s", api.ErrorCode(), api.ErrorMessage())
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// code is the name that AWS gives to an error, "" for those that it did not answer with.
func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

func (b *bucket) path(key string) string { return "s3://" + b.cfg.Bucket + "/" + key }

// States implements Source: the bucket, the objects that are being read, and some of those that cannot be.
func (b *bucket) States() []pipeline.InputState {
	shown, lag := b.queue.view(maxShown)
	whole := pipeline.InputState{Input: b.cfg.Name, Path: b.path(b.cfg.Prefix), State: "idle", Lag: lag}
	if lag > 0 {
		whole.State = "reading"
	}
	b.mu.Lock()
	var faults []string
	for _, what := range bucketErrors {
		if text := b.faults[what]; text != "" {
			faults = append(faults, text)
		}
	}
	b.mu.Unlock()
	if len(faults) > 0 {
		whole.State, whole.Err = "unreadable", strings.Join(faults, "; ")
	}
	var states []pipeline.InputState
	for _, v := range shown {
		s := pipeline.InputState{Input: b.cfg.Name, Path: b.path(v.key), State: "reading"}
		if v.fault != "" {
			s.State, s.Err = "unreadable", v.fault
		}
		states = append(states, s)
	}
	slices.SortFunc(states, func(a, b pipeline.InputState) int { return cmp.Compare(a.Path, b.Path) })
	return append([]pipeline.InputState{whole}, states...)
}
