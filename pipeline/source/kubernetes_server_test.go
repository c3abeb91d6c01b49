//go:build k8s

package source

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	kube "k8s.io/client-go/kubernetes"
	kuberest "k8s.io/client-go/rest"
)

// apiServer is a real kube-apiserver over a real etcd, on the loopback interface.
type apiServer struct {
	t       *testing.T
	dir     string
	address string
	etcd    string
	ca      []byte
	process *exec.Cmd
	admin   *kube.Clientset
}

const (
	adminToken  = "admin-token"
	squallToken = "squall-token"
	squallUser  = "system:serviceaccount:squall:squall"
)

func startAPI(t *testing.T) *apiServer {
	t.Helper()
	for _, tool := range []string{"etcd", "kube-apiserver"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%v: make test-k8s builds it", err)
		}
	}
	a := &apiServer{t: t, dir: t.TempDir(), address: loopback(t), etcd: "http://" + loopback(t)}
	peer := "http://" + loopback(t)
	a.certify()
	a.launch("etcd", "--data-dir", filepath.Join(a.dir, "etcd"), "--listen-client-urls", a.etcd, "--advertise-client-urls", a.etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--unsafe-no-fsync")
	a.file("tokens", adminToken+",admin,1,system:masters\n"+squallToken+","+squallUser+",2\n")
	a.serve()
	admin, err := kube.NewForConfig(&kuberest.Config{
		Host: "https://" + a.address, BearerToken: adminToken, TLSClientConfig: kuberest.TLSClientConfig{CAData: a.ca},
		QPS: 1000, Burst: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	a.admin = admin
	a.ready()
	return a
}

// loopback gives a free address.
func loopback(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (a *apiServer) file(name, content string) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// certify makes a certificate of the server's own, and the key of service accounts.
func (a *apiServer) certify() {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	a.file("cert", string(a.ca))
	a.file("key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})))
}

// launch starts a program that ends with the test.
func (a *apiServer) launch(name string, args ...string) *exec.Cmd {
	a.t.Helper()
	log, err := os.OpenFile(filepath.Join(a.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		a.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = a.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { kill(cmd) })
	return cmd
}

func kill(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()
	}
}

func (a *apiServer) serve() {
	a.t.Helper()
	_, port, _ := net.SplitHostPort(a.address)
	in := func(name string) string { return filepath.Join(a.dir, name) }
	a.process = a.launch("kube-apiserver", "--etcd-servers", a.etcd, "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1",
		"--secure-port", port, "--tls-cert-file", in("cert"), "--tls-private-key-file", in("key"), "--token-auth-file", in("tokens"),
		"--authorization-mode", "RBAC", "--endpoint-reconciler-type", "none", "--service-cluster-ip-range", "10.0.0.0/24",
		"--service-account-issuer", "https://squall.test", "--service-account-key-file", in("key"),
		"--service-account-signing-key-file", in("key"), "--disable-admission-plugins", "ServiceAccount")
}

// ready waits until the API answers and its roles are there.
func (a *apiServer) ready() {
	a.t.Helper()
	end := time.After(3 * time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithTimeout(a.t.Context(), 5*time.Second)
		answer, err := a.admin.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		cancel()
		if err == nil && string(answer) == "ok" {
			return
		}
		select {
		case <-end:
			log, _ := os.ReadFile(filepath.Join(a.dir, "kube-apiserver.log"))
			a.t.Fatalf("the API is not ready: %v: %s\n%s", err, answer, log[max(0, len(log)-4000):])
		case <-tick.C:
		}
	}
}

// grant applies deploy/kubernetes/rbac.yaml.
func (a *apiServer) grant() {
	a.t.Helper()
	file, err := os.ReadFile("../../deploy/kubernetes/rbac.yaml")
	if err != nil {
		a.t.Fatal(err)
	}
	for dec := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(file))); ; {
		doc, err := dec.Read()
		if err == io.EOF { //nolint:errorlint // as the reader says it
			return
		}
		if err == nil {
			err = a.apply(doc)
		}
		if err != nil {
			a.t.Fatal(err)
		}
	}
}

func (a *apiServer) apply(doc []byte) error {
	ctx := a.t.Context()
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &kind); err != nil {
		return err
	}
	var err error
	switch kind.Kind {
	case "Namespace":
		var o core.Namespace
		if err = yaml.UnmarshalStrict(doc, &o); err == nil {
			_, err = a.admin.CoreV1().Namespaces().Create(ctx, &o, metav1.CreateOptions{})
		}
	case "ServiceAccount":
		var o core.ServiceAccount
		if err = yaml.UnmarshalStrict(doc, &o); err == nil {
			_, err = a.admin.CoreV1().ServiceAccounts(o.Namespace).Create(ctx, &o, metav1.CreateOptions{})
		}
	case "ClusterRole":
		var o rbac.ClusterRole
		if err = yaml.UnmarshalStrict(doc, &o); err == nil {
			_, err = a.admin.RbacV1().ClusterRoles().Create(ctx, &o, metav1.CreateOptions{})
		}
	case "ClusterRoleBinding":
		var o rbac.ClusterRoleBinding
		if err = yaml.UnmarshalStrict(doc, &o); err == nil {
			_, err = a.admin.RbacV1().ClusterRoleBindings().Create(ctx, &o, metav1.CreateOptions{})
		}
	default:
		err = fmt.Errorf("rbac.yaml holds a %q", kind.Kind)
	}
	return err
}

// compact makes etcd forget its history, by its JSON gateway.
func (a *apiServer) compact() {
	a.t.Helper()
	post := func(path, body string) string {
		answer, err := http.Post(a.etcd+path, "application/json", strings.NewReader(body))
		if err != nil {
			a.t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			a.t.Fatalf("%s: %v: %s %s", path, err, answer.Status, text)
		}
		return string(text)
	}
	put := ""
	for range 10 {
		put = post("/v3/kv/put", `{"key":"c3F1YWxs","value":"c3F1YWxs"}`)
	}
	_, revision, _ := strings.Cut(put, `"revision":"`)
	revision, _, _ = strings.Cut(revision, `"`)
	post("/v3/kv/compaction", `{"revision":"`+revision+`","physical":true}`)
}

// watchFrom gives the error that a watch from a resource version begins with.
func (a *apiServer) watchFrom(version string) error {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 10*time.Second)
	defer cancel()
	w, err := a.admin.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return err
	}
	defer w.Stop()
	return apierrors.FromObject((<-w.ResultChan()).Object)
}

// kubeconfig writes the access of a token.
func (a *apiServer) kubeconfig(token string) string {
	return a.file("kubeconfig-"+token, fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "https://%s", certificate-authority: %s}}]
users: [{name: test, user: {token: %s}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
`, a.address, filepath.Join(a.dir, "cert"), token))
}

// create makes a Pod as a scheduler would have placed it.
func (a *apiServer) create(name string) *core.Pod {
	a.t.Helper()
	p, err := a.admin.CoreV1().Pods("default").Create(a.t.Context(), &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       core.PodSpec{NodeName: "node-1", Containers: []core.Container{{Name: "php", Image: "php:8"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	return a.restart(p, 0, "", 0)
}

// restart sets a Pod's status as kubelet does.
func (a *apiServer) restart(p *core.Pod, count int32, reason string, code int32) *core.Pod {
	a.t.Helper()
	p, err := a.admin.CoreV1().Pods("default").Get(a.t.Context(), p.Name, metav1.GetOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	p.Status.Phase = core.PodRunning
	p.Status.ContainerStatuses = []core.ContainerStatus{{Name: "php", Image: "php:8", ImageID: "php"}}
	st := &p.Status.ContainerStatuses[0]
	st.State.Running = &core.ContainerStateRunning{StartedAt: metav1.Now()}
	if count > 0 {
		end(st, count, reason, code, time.Now())
	}
	if p, err = a.admin.CoreV1().Pods("default").UpdateStatus(a.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		a.t.Fatal(err)
	}
	return p
}

func (a *apiServer) event(name, kind, reason, message string) {
	a.t.Helper()
	e := event(name, kind, reason, message, 1)
	e.Namespace, e.UID, e.InvolvedObject.Namespace = "default", "", "default"
	if _, err := a.admin.CoreV1().Events("default").Create(a.t.Context(), e, metav1.CreateOptions{}); err != nil {
		a.t.Fatal(err)
	}
}

// watchAPI runs a source of a token's access until stop.
func watchAPI(t *testing.T, a *apiServer, token string, s *spool) (src Source, stop func()) {
	t.Helper()
	rt := testRuntime()
	rt.Logger = zap.NewNop()
	made, err := New(strict("{type: kubernetes, kubeconfig: "+a.kubeconfig(token)+", qps: 100, burst: 100}"), rt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- made.Run(ctx, s, s.emit(ctx)) }()
	return made, func() {
		t.Helper()
		began := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("stopped after %s", d)
		}
	}
}

func stateOfAll(t *testing.T, src Source, state, text string) {
	t.Helper()
	until(t, func() bool {
		n := 0
		for _, st := range src.States() {
			if st.State == state && strings.Contains(st.Err, text) {
				n++
			}
		}
		return n == 3
	}, func() string { return fmt.Sprintf("states %+v, want %s %q", src.States(), state, text) })
}

func tells(t *testing.T, s *spool, want ...string) {
	t.Helper()
	until(t, func() bool { return len(told(t, s)) >= len(want) }, func() string { return fmt.Sprint(told(t, s)) })
	wantTold(t, s, want...)
}

// A real API server: no rights, then those of deploy/kubernetes/rbac.yaml and no others; restarts and events; the
// server is away and comes back; the history that a watch needs is compacted away.
func TestKubernetesRealServer(t *testing.T) {
	a := startAPI(t)
	s := newSpool(t)
	wrong, stopWrong := watchAPI(t, a, "wrong-token", newSpool(t))
	stateOfAll(t, wrong, "unreadable", "nauthorized")
	stopWrong()

	src, stop := watchAPI(t, a, squallToken, s)
	stateOfAll(t, src, "unreadable", "forbidden")
	first, second := a.create("first"), a.create("second")
	a.grant()
	stateOfAll(t, src, "reading", "")

	a.restart(first, 1, "OOMKilled", 137)
	want := []string{"container_restart default/first php #1 OOMKilled/137"}
	tells(t, s, want...)
	a.restart(second, 2, "Completed", 0)
	want = append(want, "container_restart default/second php #1 unknown", "container_restart default/second php #2 Completed/0")
	tells(t, s, want...)
	a.event("pulled", "Normal", "Pulled", "present")
	a.event("kill", "Normal", "Killing", "Container php failed liveness probe, will be restarted")
	want = append(want, "liveness_restart default/a php ×1")
	tells(t, s, want...)
	a.event("probe", "Warning", "Unhealthy", "Liveness probe failed: x")
	want = append(want, "probe_failed default/a php ×1")
	tells(t, s, want...)

	kill(a.process)
	stateOfAll(t, src, "unreadable", "")
	a.compact()
	a.serve()
	a.ready()
	if err := a.watchFrom(first.ResourceVersion); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from before the compaction: %v, want 410", err)
	}
	a.restart(first, 2, "Error", 1)
	want = append(want, "container_restart default/first php #2 Error/1")
	tells(t, s, want...)
	stateOfAll(t, src, "reading", "")
	stop()

	// What happened while squall was away is told by the next run, what was told before is not.
	a.restart(first, 5, "Error", 2)
	again := newSpool(t)
	again.streams, again.order = s.streams, s.order
	src, stop = watchAPI(t, a, squallToken, again)
	stateOfAll(t, src, "reading", "")
	restarts := func() (of []string) {
		for _, line := range told(t, again) {
			if strings.HasPrefix(line, "container_restart") {
				of = append(of, line)
			}
		}
		return of
	}
	until(t, func() bool { return len(restarts()) >= 3 }, func() string { return "told: " + strings.Join(restarts(), "; ") })
	stop()
	if got := strings.Join(restarts(), "; "); got != "container_restart default/first php #3 unknown; "+
		"container_restart default/first php #4 unknown; container_restart default/first php #5 Error/2" {
		t.Errorf("told after the second start: %s", got)
	}
	a.rightsAreMinimal()
}

// rightsAreMinimal tries what squall must not be able to do.
func (a *apiServer) rightsAreMinimal() {
	a.t.Helper()
	client, err := kube.NewForConfig(&kuberest.Config{
		Host: "https://" + a.address, BearerToken: squallToken, TLSClientConfig: kuberest.TLSClientConfig{CAData: a.ca},
	})
	if err != nil {
		a.t.Fatal(err)
	}
	ctx := a.t.Context()
	_, secrets := client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	_, nodes := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	deletes := client.CoreV1().Pods("default").Delete(ctx, "first", metav1.DeleteOptions{})
	for what, err := range map[string]error{"secrets": secrets, "nodes": nodes, "deleting": deletes} {
		if !apierrors.IsForbidden(err) {
			a.t.Errorf("%s: %v, want that it is forbidden", what, err)
		}
	}
}
