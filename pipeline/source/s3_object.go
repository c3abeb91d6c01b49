package source

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"go.uber.org/zap"

	"github.com/squall-sre/squall/pipeline"
)

// read takes objects from the queue and hands them on.
func (b *bucket) read(ctx context.Context) error {
	c := newCutter()
	for {
		o := b.queue.next(ctx)
		if o == nil {
			return nil
		}
		if err := b.readObject(ctx, o, c); err != nil {
			return err
		}
		b.gauge()
	}
}

// readObject reads an object, and decides what becomes of it. The error is emit's.
func (b *bucket) readObject(ctx context.Context, o *object, c *cutter) error {
	if !o.touched {
		o.off, o.stored = b.positions.Position(o.stream.ID)
		o.touched = true
	}
	err := b.fetch(ctx, o, c)
	if err != nil && slices.Contains([]string{"NoSuchKey", "PreconditionFailed"}, code(err)) {
		err = b.vanished(o)
	}
	var broken putError
	switch own := isOwn(err); {
	case ctx.Err() != nil:
	case errors.As(err, &broken):
		return broken.error
	case err == nil:
		b.tell(errGet, nil)
		b.queue.finish(o)
	case own:
		b.meter.failed(errGet)
		if b.queue.failed(o, reason(err)) == 1 {
			b.log.Warn("cannot read an object, trying on and reading others", zap.String("path", o.stream.Path), zap.Error(err))
		}
	default:
		b.tell(errGet, err)
		b.queue.failed(o, "")
	}
	return nil
}

// isOwn tells whether an error says something about one object, and nothing about others.
func isOwn(err error) bool {
	c := code(err)
	return c == "AccessDenied" || c == "InvalidObjectState" || strings.HasPrefix(c, "KMS.")
}

// fetch hands on the lines of an object from where it stands. An archive cannot be entered in its middle: what
// was read before is fetched again, and passed over.
func (b *bucket) fetch(ctx context.Context, o *object, c *cutter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := &s3.GetObjectInput{Bucket: &b.cfg.Bucket, Key: &o.key}
	if o.etag != "" {
		in.IfMatch = aws.String(`"` + o.etag + `"`)
	}
	out, err := b.store.GetObject(ctx, in)
	if err != nil {
		return err
	}
	body := &download{ReadCloser: out.Body, stalled: time.AfterFunc(stallLimit, func() { cancel(errStalled) })}
	defer body.Close()
	c.reset(o.stream, o.off, func(blk *pipeline.Block) error { return b.put(o, blk) })
	r, err := unpacked(body, max(o.size, aws.ToInt64(out.ContentLength)), b.limits)
	if err == nil {
		defer r.Close()
		if _, err = io.CopyN(io.Discard, r, o.off); err == nil {
			err = readThrough(ctx, r, readSize, c)
		}
	}
	var broken putError
	switch {
	case errors.As(err, &broken):
		return broken
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case body.err != nil:
		return body.err
	case errors.Is(err, io.EOF) && o.stored && !o.began && c.next() == o.off:
		return nil // an earlier run had read all of it
	case errors.Is(err, io.EOF):
		return ended(c.finish())
	}
	b.meter.failed(errArchive)
	b.log.Warn("cannot read the rest of an archive", zap.String("path", o.stream.Path), zap.Error(err))
	return ended(c.finish(unreadable(c)))
}

// ended marks the error of emit.
func ended(err error) error {
	if err != nil {
		return putError{err}
	}
	return nil
}

func (b *bucket) put(o *object, blk *pipeline.Block) error {
	if err := b.emit(blk); err != nil {
		return err
	}
	b.meter.count(blk)
	o.off, o.began = blk.To, true
	return nil
}

// vanished tells of an object that was deleted or replaced before it was read. One that an earlier run has read
// may well be gone.
func (b *bucket) vanished(o *object) error {
	if o.stored && !o.began {
		return nil
	}
	return ended(b.put(o, &pipeline.Block{
		Stream: o.stream, From: o.off, To: o.off, Last: true,
		Skips: []pipeline.Skip{{At: o.off, Bytes: pipeline.Unknown, Reason: pipeline.SkipVanished, Lost: true}},
	}))
}

var errStalled = errors.New("the server sends no more")

// A download is the body of an answer. It tells a connection that broke from an archive that is broken, and ends
// one that brings nothing for stallLimit.
type download struct {
	io.ReadCloser
	stalled *time.Timer
	err     error // of the connection
}

func (d *download) Read(p []byte) (int, error) {
	d.stalled.Reset(stallLimit)
	n, err := d.ReadCloser.Read(p)
	d.stalled.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		d.err = err
	}
	return n, err
}

func (d *download) Close() error {
	d.stalled.Stop()
	return d.ReadCloser.Close()
}
