package source

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/squall-sre/squall/pipeline"
)

// discover lists the bucket until ctx ends.
func (b *bucket) discover(ctx context.Context) error {
	for failures := 0; ; {
		wait := b.cfg.Poll
		err := b.list(ctx)
		if ctx.Err() != nil {
			return nil
		}
		b.tell(errList, err)
		if err == nil {
			failures = 0
			b.queue.settle(true)
		} else {
			failures++
			wait = b.again.after(failures)
		}
		if !waitFor(ctx, wait) {
			return nil
		}
	}
}

// since is where a listing begins. It goes on from the newest object that was read, so that nothing is lost
// however long squall was away, and back from there by max_age, for what is delivered late.
func (b *bucket) since() time.Time {
	since := b.rt.Now()
	newest := b.resumed
	if at := time.Unix(0, b.queue.newest()); at.After(newest) {
		newest = at
	}
	if newest.Unix() > 0 && newest.Before(since) { // a key may tell a time that is still to come
		since = newest
	}
	return since.Add(-b.cfg.MaxAge)
}

var errRepeats = errors.New("the server lists the same keys again and again")

// list finds the objects that are not known yet. Keys are listed in their order, which is not that of time where
// several balancers deliver; so nothing of a listing is read before all of it is known. Where a key tells an old
// time, those after it up to the right time are skipped without being listed: a balancer costs one request, not
// one for every thousand objects that it ever delivered.
func (b *bucket) list(ctx context.Context) error {
	since := b.since()
	b.queue.forget(since.UnixNano(), 1<<30)
	var found []*object
	for after := ""; ; {
		in := &s3.ListObjectsV2Input{Bucket: &b.cfg.Bucket, Prefix: &b.cfg.Prefix}
		if after != "" {
			in.StartAfter = &after
		}
		page, err := b.store.ListObjectsV2(ctx, in)
		if err != nil {
			return err
		}
		before := after
		for _, entry := range page.Contents {
			key := aws.ToString(entry.Key)
			if key <= after || !strings.HasPrefix(key, b.cfg.Prefix) {
				continue
			}
			if skip, ok := skipTo(key, since); ok {
				after = skip
				continue
			}
			after = key
			at, dated := objectTime(key, aws.ToTime(entry.LastModified))
			if !at.Before(since) && isLog(key, aws.ToInt64(entry.Size)) {
				if o := b.object(key, aws.ToString(entry.ETag), aws.ToInt64(entry.Size), at, dated); !b.queue.knows(o.stream.ID) {
					found = append(found, o)
				}
			}
		}
		found = oldest(found, 2*maxQueued)
		if !aws.ToBool(page.IsTruncated) {
			break
		}
		if after == before {
			return errRepeats
		}
	}
	for _, o := range oldest(found, 0)[:min(len(found), max(0, maxQueued-b.queue.size()))] {
		b.queue.add(o)
	}
	b.gauge()
	return nil
}

// oldest sorts the objects once there are more than most, and then keeps half of most (of all, if most is 0).
func oldest(found []*object, most int) []*object {
	if len(found) <= most {
		return found
	}
	slices.SortFunc(found, compareObjects)
	if most > 0 {
		clear(found[most/2:])
		found = found[:most/2]
	}
	return found
}

// object describes what was found at a key.
func (b *bucket) object(key, etag string, size int64, at time.Time, dated bool) *object {
	var delivered time.Time
	if !dated {
		delivered = at
	}
	return &object{
		key: key, etag: strings.Trim(etag, `"`), size: size, at: at.UnixNano(),
		stream: &pipeline.Stream{
			Input: b.cfg.Name, ID: objectStream(b.cfg.Name, b.cfg.Bucket, key, etag, delivered), Path: b.path(key), Labels: b.cfg.Labels,
		},
	}
}

func (b *bucket) gauge() {
	shown, lag := b.queue.view(0)
	b.meter.lag.Set(float64(lag))
	b.meter.open.Set(float64(len(shown)))
}
