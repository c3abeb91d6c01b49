package source

import (
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	clienttesting "k8s.io/client-go/testing"
)

// What is tried of a bucket is what squall does with it: listing, and reading.
func TestProbeOfABucket(t *testing.T) {
	g := startGateway(t)
	probe := func(change func(*s3Config)) (string, error) {
		b := g.bucket(change)
		return b.Probe(t.Context())
	}
	if found, err := probe(nil); err != nil || !strings.Contains(found, "no object under this prefix") {
		t.Errorf("an empty bucket: %q, %v", found, err)
	}
	const key = "AWSLogs/1/elasticloadbalancing/a.log.gz"
	g.put(key, []byte("x"))
	if found, err := probe(nil); err != nil || !strings.Contains(found, key+" can be read") {
		t.Errorf("a bucket: %q, %v", found, err)
	}
	if n := g.gets.Load(); n != 1 {
		t.Errorf("%d objects were fetched", n)
	}
	g.put("AWSLogs/0", nil)
	if found, err := probe(nil); err != nil || !strings.Contains(found, "AWSLogs/0 can be read") {
		t.Errorf("an object without a byte: %q, %v", found, err)
	}
	g.delete("AWSLogs/0")
	g.fail(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "a.log.gz") {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return false
	})
	if found, err := probe(nil); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("objects that may not be read: %q, %v", found, err)
	}
	g.fail(nil)
	if found, err := probe(func(c *s3Config) { c.Bucket = "none" }); err == nil || !strings.Contains(err.Error(), "list none/") {
		t.Errorf("a bucket that is not there: %q, %v", found, err)
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "another")
	if found, err := probe(nil); err == nil {
		t.Errorf("a wrong key: %q", found)
	}
}

// What is tried of a cluster is what squall does with it: listing and watching, in each namespace.
func TestProbeOfACluster(t *testing.T) {
	c := newCluster(t, "{type: kubernetes, namespaces: [shop, blog]}")
	if found, err := c.src.Probe(t.Context()); err != nil || !strings.Contains(found, "listed and watched") {
		t.Errorf("%q, %v", found, err)
	}
	asked := map[string]int{}
	for _, a := range c.set.Actions() {
		asked[filepath.Join(a.GetVerb(), a.GetResource().Resource, a.GetNamespace())]++
		if _, changes := a.(clienttesting.CreateAction); changes {
			t.Errorf("it changes something: %v", a)
		}
	}
	for _, want := range []string{"list/pods/shop", "list/events/shop", "watch/pods/blog", "watch/events/blog"} {
		if asked[want] != 1 {
			t.Errorf("%s was asked %d times: %v", want, asked[want], asked)
		}
	}
	c.mu.Lock()
	c.watch = errors.New("forbidden: cannot watch")
	c.mu.Unlock()
	if found, err := c.src.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot watch") {
		t.Errorf("a watch that is refused: %q, %v", found, err)
	}
}
