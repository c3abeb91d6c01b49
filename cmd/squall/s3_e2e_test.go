package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/squall-sre/squall/cmd/squall/simulate"
)

// startVersity runs an S3 server with an empty bucket. The credentials of the environment are set to its own.
func startVersity(t *testing.T, bucket string) (endpoint string, put func(key string, body []byte)) {
	t.Helper()
	path, err := filepath.Abs("../../.cache/bin/versitygw")
	if err != nil {
		t.Fatal(err)
	}
	if given := os.Getenv("SQUALL_VERSITYGW"); given != "" {
		path = given
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: `make test` installs it, or set SQUALL_VERSITYGW to a versitygw program", err)
	}
	const access, secret = "tester", "a secret of tests"
	none := filepath.Join(t.TempDir(), "none")
	for key, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": "", "AWS_PROFILE": "",
		"AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": none, "AWS_SHARED_CREDENTIALS_FILE": none,
	} {
		t.Setenv(key, value)
	}
	objects, metadata, address := t.TempDir(), t.TempDir(), freeAddress(t)
	said := &output{}
	cmd := exec.Command(path, "--port", address, "--quiet", "posix", "--sidecar", metadata, objects)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY_ID="+access, "ROOT_SECRET_ACCESS_KEY="+secret)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("versitygw: %s", said)
		}
	})
	endpoint = "http://" + address
	eventually(t, "versitygw listens", func() bool {
		c, err := net.Dial("tcp", address)
		return err == nil && c.Close() == nil
	})
	client := s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, ""),
	})
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	return endpoint, func(key string, body []byte) {
		t.Helper()
		in := &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(body), ContentLength: aws.Int64(int64(len(body)))}
		if _, err := client.PutObject(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
}

// An albFile is a file of a balancer until it is delivered.
type albFile struct {
	bytes.Buffer
	key string
}

func (*albFile) Close() error { return nil }

// albFiles are what a balancer of two nodes logs of a storm and of the quiet time after it.
func albFiles(t *testing.T) (files []*albFile, lines int) {
	t.Helper()
	create := func(key string) (io.WriteCloser, error) {
		f := &albFile{key: key}
		files = append(files, f)
		return f, nil
	}
	storm := scenario(t, "S01")
	quiet := shortened(scenario(t, "quiet_day"), 36)
	for _, o := range []simulate.Options{
		{Scenario: storm, Seed: 31},
		{Scenario: quiet, Seed: 32, Start: storm.Start.Add(storm.Duration)},
	} {
		truth, err := simulate.RunALBFiles(context.WithoutCancel(t.Context()), o, 2, create)
		if err != nil {
			t.Fatal(err)
		}
		lines += truth.Lines
	}
	return files, lines
}

// deliverUntil delivers the files of periods that ended before a time, and gives the others.
func deliverUntil(t *testing.T, files []*albFile, put func(string, []byte), end time.Time) (rest []*albFile) {
	t.Helper()
	for _, f := range files {
		_, name, _ := strings.Cut(f.key, "_app.")
		if part := strings.Split(name, "_"); part[1] > end.UTC().Format("20060102T1504Z") {
			rest = append(rest, f)
			continue
		}
		put(f.key, f.Bytes())
	}
	if len(rest) == 0 || len(rest) == len(files) {
		t.Fatalf("%d of %d files end after %s", len(rest), len(files), end)
	}
	return rest
}

// firstPage is when the first page fires in a transcript.
func firstPage(t *testing.T, transcript string) time.Time {
	t.Helper()
	for line := range strings.Lines(transcript) {
		var a struct {
			At       time.Time
			Severity string
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatal(err)
		}
		if a.Severity == "page" {
			return a.At
		}
	}
	t.Fatalf("no page: %s", transcript)
	return time.Time{}
}

// A storm that a balancer delivered to S3, in no order and one file twice, gives the alerts that the same files
// give to a replay, to the byte. squall is stopped amid the storm, and started when the rest was delivered.
func TestStormFromS3IsTheStormOfReplay(t *testing.T) {
	endpoint, put := startVersity(t, "lb-logs")
	files, lines := albFiles(t)
	dir := t.TempDir()
	var paths []string
	rand.New(rand.NewPCG(3, 4)).Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	for i, f := range append(slices.Clone(files), files[len(files)/2]) {
		path := filepath.Join(dir, fmt.Sprintf("%d.log.gz", i))
		write(t, path, f.String())
		paths = append(paths, path)
	}
	config := filepath.Join(dir, "squall.yaml")
	write(t, config, fmt.Sprintf(`
sources: [{name: lb, type: s3, bucket: lb-logs, prefix: AWSLogs/, endpoint: %q, format: alb, poll: 1s, max_age: 87600h}]
spool: {dir: %q}
notify: [{type: stdout, format: json}]
site_defaults: {pool: {workers: 25}}
`, endpoint, filepath.Join(dir, "spool")))

	replay := launch(t, surroundings{}, append([]string{"replay", "--config", config, "--format", "alb", "--json", "-"}, paths...)...)
	check(t, "exit code of replay", replay.exit(time.Minute), 0)
	want, summary, _ := strings.Cut(replay.stdout.String(), `{"summary"`)
	if !strings.Contains(summary, fmt.Sprintf(`"lines":%d,`, lines)) {
		t.Errorf("%d lines were logged: %s", lines, summary)
	}
	if firing := strings.Count(want, `"state":"firing"`); !strings.Contains(want, `"StormHurting"`) || strings.Count(want, `"state":"resolved"`) != firing {
		t.Fatalf("the storm should begin and end: %s", want)
	}

	rest := deliverUntil(t, files, put, firstPage(t, want).Add(16*time.Minute)) // the watermark is 10 minutes behind, a file holds 5
	squall := runSquall(t, dir, surroundings{})
	eventually(t, "the storm has begun", func() bool { squall.alive(); return strings.Contains(squall.stdout.String(), "StormHurting") })
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
	first := squall.stdout.String()
	if strings.Contains(first, `"resolved"`) {
		t.Errorf("squall was not stopped amid the storm: %s", first)
	}
	for _, f := range rest {
		put(f.key, f.Bytes())
	}
	put(files[0].key, files[0].Bytes()) // it was delivered before
	squall = runSquall(t, dir, surroundings{})
	transitions := strings.Count(want, "\n")
	eventually(t, "the storm is over", func() bool {
		squall.alive()
		return strings.Count(first+squall.stdout.String(), "\n") >= transitions
	})
	check(t, "alerts", first+squall.stdout.String(), want)
	check(t, "late lines", squall.metric(`squall_lines_late_total{source="lb"}`), 0)
	state, ok := squall.source("s3://lb-logs/AWSLogs/")
	if !ok || state.Error != "" {
		t.Errorf("the bucket is %+v", state)
	}
	check(t, "exit code", squall.stop(syscall.SIGTERM), 0)
}
