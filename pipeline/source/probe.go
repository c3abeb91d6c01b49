package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// A Prober is a source whose other end can be tried once, before it is run. What it would read stays there to be read.
// Probe tells what was found, or why squall could not read from there. It blocks until it knows, or ctx ends.
type Prober interface {
	Probe(ctx context.Context) (found string, err error)
}

// Probe implements Prober: one entry of each unit.
func (j *journal) Probe(ctx context.Context) (string, error) {
	var quiet []string
	for _, name := range j.cfg.Units {
		any, err := j.any(ctx, name)
		if err != nil {
			return "", err
		}
		if !any {
			quiet = append(quiet, name)
		}
	}
	if len(quiet) > 0 {
		return fmt.Sprintf("readable; no entry yet of %s", strings.Join(quiet, ", ")), nil
	}
	return "readable: " + strings.Join(j.cfg.Units, ", "), nil
}

// any tells whether there is an entry of a unit that may be read.
func (j *journal) any(ctx context.Context, unit string) (bool, error) {
	args := []string{"-o", "json", "-n", "1", "--no-pager", "-u", unit}
	if j.cfg.Directory != "" {
		args = append(args, "-D", j.cfg.Directory)
	}
	said := &complaint{}
	cmd := exec.CommandContext(ctx, j.cfg.Journalctl, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "SYSTEMD_COLORS=0")
	cmd.Stderr, cmd.WaitDelay = said, childGrace
	out, err := cmd.Output()
	switch text := said.String(); {
	case barred(text):
		return false, errors.New(text + ": add the user to the group systemd-journal")
	case err != nil:
		return false, fmt.Errorf("journalctl: %w %s", err, text)
	}
	return len(bytes.TrimSpace(out)) > 0, nil
}

// Probe implements Prober: one object of the listing, whose first byte is read, or what the queue says of itself.
func (b *bucket) Probe(ctx context.Context) (string, error) {
	client := b.connect(ctx)
	if client == nil {
		return "", fmt.Errorf("no access to AWS: %s", b.faultOf(errConfigure))
	}
	defer client.CloseIdleConnections()
	if b.cfg.QueueURL != "" {
		out, err := b.sqs.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
			QueueUrl: &b.cfg.QueueURL, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages},
		})
		if err != nil {
			return "", fmt.Errorf("the queue: %w", err)
		}
		return fmt.Sprintf("the queue answers; about %s announcements wait", out.Attributes[string(types.QueueAttributeNameApproximateNumberOfMessages)]), nil
	}
	page, err := b.store.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: &b.cfg.Bucket, Prefix: &b.cfg.Prefix, MaxKeys: aws.Int32(1)})
	if err != nil {
		return "", fmt.Errorf("list %s/%s: %w", b.cfg.Bucket, b.cfg.Prefix, err)
	}
	if len(page.Contents) == 0 {
		return "the bucket answers; no object under this prefix yet", nil
	}
	key := page.Contents[0].Key
	object, err := b.store.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.cfg.Bucket, Key: key, Range: aws.String("bytes=0-0")})
	if err != nil && !isAPIError(err, "InvalidRange") { // an empty one has no first byte
		return "", fmt.Errorf("%s is listed and cannot be read: %w", aws.ToString(key), err)
	}
	if err == nil {
		if err := object.Body.Close(); err != nil {
			return "", err
		}
	}
	return "the bucket answers: " + aws.ToString(key) + " can be read", nil
}

// isAPIError tells whether AWS answered with an error of that code.
func isAPIError(err error, code string) bool {
	var api smithy.APIError
	return errors.As(err, &api) && api.ErrorCode() == code
}

// faultOf is why something fails now, "" when it does not.
func (b *bucket) faultOf(what string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults[what]
}

// Probe implements Prober: one pod and one event of each namespace are listed, and a watch of both is begun.
func (k *kubernetes) Probe(ctx context.Context) (string, error) {
	core, err := k.connect()
	if err != nil {
		return "", err
	}
	namespaces := k.cfg.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{meta.NamespaceAll}
	}
	one := meta.ListOptions{Limit: 1}
	for _, ns := range namespaces {
		pods, events := core.Pods(ns), core.Events(ns)
		if _, err := pods.List(ctx, one); err != nil {
			return "", fmt.Errorf("list pods: %w", err)
		}
		if _, err := events.List(ctx, one); err != nil {
			return "", fmt.Errorf("list events: %w", err)
		}
		short := meta.ListOptions{TimeoutSeconds: new(int64(1))}
		for _, begin := range []func(context.Context, meta.ListOptions) (watch.Interface, error){pods.Watch, events.Watch} {
			w, err := begin(ctx, short)
			if err != nil {
				return "", fmt.Errorf("watch: %w", err)
			}
			w.Stop()
		}
	}
	return "the API answers: pods and events may be listed and watched", nil
}
