// Package kubernetes holds squall's chart; its tests are Helm's, and the API's types.
package kubernetes

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

var writeChart = flag.Bool("write-chart", false, "write the chart's copies and what it renders anew")

// cluster is the version that the chart is rendered for: what Helm is built with when Go installs it is too old.
const (
	chart   = "squall"
	cluster = "--kube-version=1.37.0"
)

// renderings are what the goldens hold: the chart's own values, all that is optional but the dashboards, which are long
// and looked at elsewhere, and a fleet in both ways.
var renderings = map[string][]string{
	"default":        nil,
	"everything":     {"--values", "squall/ci/everything-values.yaml", "--set", "dashboards.enabled=false"},
	"fleet-embedded": {"--values", "squall/ci/fleet-embedded-values.yaml"},
	"fleet-external": {"--values", "squall/ci/fleet-external-values.yaml"},
}

// workloads is how many a rendering has.
func workloads(name string) int {
	if strings.HasPrefix(name, "fleet") {
		return 3
	}
	return 2
}

// helm runs Helm, which knows no cluster here.
func helm(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	path, err := exec.LookPath("helm")
	if err != nil {
		if path, err = filepath.Abs("../../.cache/bin/helm"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: `make test` installs it", err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir(), "KUBECONFIG=/dev/null")
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// rendered is what was rendered already, by its arguments.
var rendered sync.Map

// render gives what the chart makes.
func render(t *testing.T, args ...string) string {
	t.Helper()
	key := strings.Join(args, " ")
	if out, known := rendered.Load(key); known {
		return out.(string)
	}
	out, err := helm(t, append([]string{"template", "squall", chart, "--namespace", "squall", cluster}, args...)...)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rendered.Store(key, out)
	return out
}

// TestWrittenCopies holds that the chart's copy of the rules is the original, which Helm could not read.
func TestWrittenCopies(t *testing.T) {
	original, err := os.ReadFile("../prometheus/squall.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	const path = "squall/rules/squall.rules.yml"
	if *writeChart {
		if err := os.WriteFile(path, original, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if is, err := os.ReadFile(path); err != nil || !bytes.Equal(is, original) {
		t.Errorf("%s is not the original: `make dashboards` (%v)", path, err)
	}
}

// TestWrittenRenderings holds what the chart makes to the goldens.
func TestWrittenRenderings(t *testing.T) {
	for name, args := range renderings {
		got := render(t, args...)
		path := filepath.Join("testdata", name+".golden.yaml")
		if *writeChart {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s: `make dashboards` writes it anew\n%s", path, diff)
		}
	}
}

func TestChartLints(t *testing.T) {
	for _, args := range renderings {
		if out, err := helm(t, append([]string{"lint", "--strict", chart, cluster}, args...)...); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// TestValuesAreChecked holds that the schema refuses what is mistyped, and what the chart sets itself.
func TestValuesAreChecked(t *testing.T) {
	out, err := helm(t, "template", "squall", chart, cluster, "--values", "testdata/wrong-values.yaml")
	if err == nil {
		t.Fatalf("they are taken: %s", out)
	}
	for _, want := range []string{
		"properties 'imgae' not allowed", "/image/digest", "/image/pullPolicy", "/image/repository", "/logs/spool/hostPath", "/logs/spool/max_bytes",
		"/logs/user/uid", "/logs/sources/0/type", "/probes/liveness/failureThreshold", "propertyName 'sources'", "propertyName 'spool'", "propertyName 'notfy'", "/config/notify/0/type",
		"/logs/sources/1", "/logs/sources/2/paths", "/watch/namespaces/0", "/watch/podLabels/app.kubernetes.io", "/watch/resources/limits/memory", "properties 'limts' not allowed", "/fullnameOverride",
		"/terminationGracePeriodSeconds", "/prometheusRule/groups/0", "properties 'replcias' not allowed", "/watch/replicas", "/podMonitor/enabled",
		"/fleet/mode", "/fleet/external/nats", "/fleet/external'", "/fleet/embedded/replicas", "/fleet/embedded/storage/size", "/fleet/embedded/nkeys/aggregate",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("nothing of %s in %s", want, out)
		}
	}
}

// TestFleetsAreWhole holds that the chart refuses a fleet which could not start, or which would let in anybody.
func TestFleetsAreWhole(t *testing.T) {
	embedded := []string{"--values", "squall/ci/fleet-embedded-values.yaml", "--set"}
	for want, args := range map[string][]string{
		"fleet.external.nats is empty":                  {"--set", "fleet.mode=external"},
		"servers know each other by certificates":       append(embedded, "fleet.embedded.tlsSecret="),
		"nodes are known by their NKeys":                append(embedded, "fleet.embedded.nkeySecret="),
		"their public keys belong in":                   append(embedded, "fleet.embedded.nkeys.aggregate="),
		"longer than 52 bytes":                          append(embedded, "fullnameOverride="+strings.Repeat("x", 48)),
		"squall-nkeys\n            defaultMode: 0440\n": append(embedded, "fleet.embedded.tlsSecret=,fleet.embedded.replicas=1"), // that is whole
	} {
		out, err := helm(t, append([]string{"template", "squall", chart, cluster}, args...)...)
		if whole := strings.Contains(want, "squall-nkeys"); (err == nil) != whole || !strings.Contains(out, want) {
			t.Errorf("%q: %v, nothing of %q in %s", args, err, want, out)
		}
	}
}

// TestFleetFindsItself holds that nodes and servers meet: the names by which they connect are those that the headless
// Service and the StatefulSet give to the Pods, at the ports that these and the NetworkPolicy open, and to nobody else.
func TestFleetFindsItself(t *testing.T) {
	var set *apps.StatefulSet
	var service *core.Service
	var allowed *networking.NetworkPolicy
	configs := map[string]string{}
	for _, o := range decode(t, render(t, renderings["fleet-embedded"]...)) {
		switch o := o.(type) {
		case *apps.StatefulSet:
			set = o
		case *core.Service:
			service = o
		case *networking.NetworkPolicy:
			if strings.HasSuffix(o.Name, "-aggregate") {
				allowed = o
			}
		case *core.ConfigMap:
			configs[o.Name] = o.Data["squall.yaml"]
		}
	}
	if service.Name != set.Spec.ServiceName || service.Spec.ClusterIP != core.ClusterIPNone || !service.Spec.PublishNotReadyAddresses || set.Spec.PodManagementPolicy != apps.ParallelPodManagement {
		t.Errorf("%+v of %s", service.Spec, set.Spec.ServiceName)
	}
	for key, value := range service.Spec.Selector {
		if set.Spec.Template.Labels[key] != value {
			t.Errorf("the Service looks for %s=%s: %v", key, value, set.Spec.Template.Labels)
		}
	}
	domain := service.Name + "." + service.Namespace + ".svc"
	routes := configs["squall-aggregate"]
	for i := range int(*set.Spec.Replicas) {
		if route := fmt.Sprintf("- nats-route://%s-%d.%s:6222\n", set.Name, i, domain); !strings.Contains(routes, route) {
			t.Errorf("no route %s in %s", route, routes)
		}
	}
	for _, name := range []string{"squall-logs", "squall-watch"} {
		if !strings.Contains(configs[name], "nats: nats://"+domain+":4222\n") || strings.Contains(configs[name], "server:") {
			t.Errorf("%s: %s", name, configs[name])
		}
	}
	opened := map[string]int32{}
	for _, p := range set.Spec.Template.Spec.Containers[0].Ports {
		opened[p.Name] = p.ContainerPort
	}
	if opened["nats"] != 4222 || opened["routes"] != 6222 {
		t.Errorf("%v", opened)
	}
	from := map[string][]networking.NetworkPolicyPeer{}
	for _, rule := range allowed.Spec.Ingress {
		for _, p := range rule.Ports {
			from[p.Port.StrVal] = rule.From
		}
	}
	for port, labels := range map[string]int{"nats": 2, "routes": 3} { // this release's Pods; and of those the aggregators
		if peers := from[port]; len(peers) != 1 || peers[0].NamespaceSelector != nil || len(peers[0].PodSelector.MatchLabels) != labels {
			t.Errorf("%s: %+v", port, peers)
		}
	}
}

// TestNodesSeeTheirOwnSeed holds that a Pod's container has its own NKey of the Secret alone, and no server's key.
func TestNodesSeeTheirOwnSeed(t *testing.T) {
	for component, pod := range pods(decode(t, render(t, renderings["fleet-embedded"]...))) {
		want := map[string]string{"logs": "$(NODE_NAME).nk", "watch": "watch.nk", "aggregate": "aggregate.nk"}[component]
		seeds := 0
		for _, m := range pod.Containers[0].VolumeMounts {
			switch m.Name {
			case "fleet-nkey":
				if seeds++; m.SubPathExpr != want {
					t.Errorf("%s: %+v", component, m)
				}
			case "fleet-tls":
				if component != "aggregate" {
					t.Errorf("%s: %+v", component, m)
				}
			}
		}
		if seeds != 1 {
			t.Errorf("%s: %d seeds", component, seeds)
		}
		for _, v := range pod.Volumes {
			if v.Name == "fleet-ca" && (len(v.Secret.Items) != 1 || v.Secret.Items[0].Key != "ca.crt") {
				t.Errorf("%s: %+v", component, v)
			}
		}
	}
}

// documents splits what was rendered.
func documents(text string) (list []string) {
	for _, doc := range strings.Split("\n"+text, "\n---") {
		if strings.Contains(doc, "kind: ") {
			list = append(list, doc)
		}
	}
	return list
}

// kinds are the types that the chart makes; those of the Prometheus Operator are not the API's own.
var kinds = map[string]func() any{
	"v1 ConfigMap": func() any { return new(core.ConfigMap) }, "v1 ServiceAccount": func() any { return new(core.ServiceAccount) },
	"apps/v1 DaemonSet": func() any { return new(apps.DaemonSet) }, "apps/v1 Deployment": func() any { return new(apps.Deployment) },
	"apps/v1 StatefulSet": func() any { return new(apps.StatefulSet) }, "v1 Service": func() any { return new(core.Service) },
	"policy/v1 PodDisruptionBudget":                   func() any { return new(policy.PodDisruptionBudget) },
	"rbac.authorization.k8s.io/v1 ClusterRole":        func() any { return new(rbac.ClusterRole) },
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding": func() any { return new(rbac.ClusterRoleBinding) },
	"rbac.authorization.k8s.io/v1 Role":               func() any { return new(rbac.Role) },
	"rbac.authorization.k8s.io/v1 RoleBinding":        func() any { return new(rbac.RoleBinding) },
	"networking.k8s.io/v1 NetworkPolicy":              func() any { return new(networking.NetworkPolicy) },
	"monitoring.coreos.com/v1 PodMonitor":             func() any { return new(map[string]any) },
	"monitoring.coreos.com/v1 PrometheusRule":         func() any { return new(map[string]any) },
}

// decode reads what was rendered, strictly, into the API's types.
func decode(t *testing.T, text string) (objects []any) {
	t.Helper()
	for _, doc := range documents(text) {
		var kind struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatalf("%v: %s", err, doc)
		}
		made := kinds[kind.APIVersion+" "+kind.Kind]
		if made == nil {
			t.Errorf("the chart makes a %s %s", kind.APIVersion, kind.Kind)
			continue
		}
		o := made()
		if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
			t.Errorf("%s: %v\n%s", kind.Kind, err, doc)
		}
		objects = append(objects, o)
	}
	return objects
}

// pods gives the Pods of the workloads, by component.
func pods(objects []any) map[string]core.PodSpec {
	out := map[string]core.PodSpec{}
	for _, o := range objects {
		switch o := o.(type) {
		case *apps.DaemonSet:
			out[o.Spec.Template.Labels["app.kubernetes.io/component"]] = o.Spec.Template.Spec
		case *apps.StatefulSet:
			out[o.Spec.Template.Labels["app.kubernetes.io/component"]] = o.Spec.Template.Spec
		case *apps.Deployment:
			out[o.Spec.Template.Labels["app.kubernetes.io/component"]] = o.Spec.Template.Spec
		}
	}
	return out
}

// TestPodsAreConfined holds what a Pod of squall may do: read, write its spool, and nothing else.
func TestPodsAreConfined(t *testing.T) {
	for name, args := range renderings {
		found := pods(decode(t, render(t, args...)))
		if len(found) != workloads(name) {
			t.Fatalf("%s: %d workloads", name, len(found))
		}
		for component, pod := range found {
			c := pod.Containers[0]
			s := c.SecurityContext
			if !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || len(s.Capabilities.Add) > 0 || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
				t.Errorf("%s: %s: %+v", name, component, s)
			}
			if root := *pod.SecurityContext.RunAsUser == 0; root == *pod.SecurityContext.RunAsNonRoot || root && (component != "logs" || name == "everything") {
				t.Errorf("%s: %s runs as %d", name, component, *pod.SecurityContext.RunAsUser)
			}
			if *pod.AutomountServiceAccountToken != (component == "watch") || pod.HostNetwork || pod.HostPID || pod.SecurityContext.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s: %s: %+v", name, component, pod)
			}
			for _, m := range c.VolumeMounts {
				if m.ReadOnly != (m.Name != "spool") {
					t.Errorf("%s: %s: %+v", name, component, m)
				}
			}
			if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() || !c.Resources.Limits.Cpu().IsZero() {
				t.Errorf("%s: %s: %+v", name, component, c.Resources)
			}
		}
	}
}

// TestValuesReachThePods holds what follows from single values.
func TestValuesReachThePods(t *testing.T) {
	objects := decode(t, render(t, "--set", "secretName=s", "--set", "logs.user.uid=65532", "--set", "logs.user.gid=65532", "--set", "watch.spool.max_bytes=1GiB",
		"--set", "networkPolicy.enabled=true", "--set-json", "networkPolicy.scrapers=[]", "--set-json", `watch.namespaces=["shop"]`, "--set", "rbac.create=false"))
	found := pods(objects)
	for component, pod := range found {
		if pod.SecurityContext.FSGroup == nil || *pod.SecurityContext.FSGroup != 65532 { // else nobody but root reads the Secret
			t.Errorf("%s: fsGroup %v", component, pod.SecurityContext.FSGroup)
		}
	}
	for _, v := range found["watch"].Volumes {
		if v.Name == "spool" && v.EmptyDir.SizeLimit.Value() < 5<<28 {
			t.Errorf("a spool of 1GiB is evicted at %s", v.EmptyDir.SizeLimit)
		}
	}
	for _, o := range objects {
		switch o := o.(type) {
		case *networking.NetworkPolicy:
			if len(o.Spec.Ingress) > 0 || len(o.Spec.PolicyTypes) != 2 { // a rule without peers would let everybody in
				t.Errorf("%s: %+v", o.Name, o.Spec)
			}
		case *rbac.Role, *rbac.ClusterRole:
			t.Errorf("rbac.create=false: %+v", o)
		}
	}
}

// TestProbesSpareTheWaiting holds the chart to what squall tells others: liveness asks the process alone, and not sooner
// than after two minutes does a Pod count as dead.
func TestProbesSpareTheWaiting(t *testing.T) {
	for component, pod := range pods(decode(t, render(t, renderings["fleet-embedded"]...))) {
		c := pod.Containers[0]
		budget := time.Duration(c.LivenessProbe.PeriodSeconds*c.LivenessProbe.FailureThreshold) * time.Second
		if c.LivenessProbe.HTTPGet.Path != "/-/healthy" || c.StartupProbe.HTTPGet.Path != "/-/healthy" || budget < 2*time.Minute {
			t.Errorf("%s: liveness %+v, %s", component, c.LivenessProbe.HTTPGet, budget)
		}
		if c.ReadinessProbe.HTTPGet.Path != "/-/ready" || c.ReadinessProbe.FailureThreshold*c.ReadinessProbe.PeriodSeconds >= int32(budget.Seconds()) {
			t.Errorf("%s: readiness %+v", component, c.ReadinessProbe)
		}
	}
}

// TestRolesAreTheSame holds that the chart grants what rbac.yaml does, with which the source is tested.
func TestRolesAreTheSame(t *testing.T) {
	text, err := os.ReadFile("rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var want []rbac.PolicyRule
	for _, doc := range documents(string(text)) {
		var role rbac.ClusterRole
		if strings.Contains(doc, "\nkind: ClusterRole\n") {
			if err := yaml.UnmarshalStrict([]byte(doc), &role); err != nil {
				t.Fatal(err)
			}
			want = role.Rules
		}
	}
	// Of several that stand by, the one that watches holds a Lease.
	lease := []rbac.PolicyRule{
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"squall-watch"}, Verbs: []string{"get", "update"}},
	}
	roles, leases := 0, 0
	for name, args := range renderings {
		for _, o := range decode(t, render(t, args...)) {
			var rules []rbac.PolicyRule
			switch o := o.(type) {
			case *rbac.ClusterRole:
				rules = o.Rules
			case *rbac.Role:
				rules = o.Rules
			default:
				continue
			}
			if reflect.DeepEqual(rules, lease) {
				leases++
				continue
			}
			if roles++; !reflect.DeepEqual(rules, want) {
				t.Errorf("%s: %+v, and rbac.yaml has %+v", name, rules, want)
			}
		}
	}
	if roles != 5 || leases != 1 { // one of the cluster in three, and one in each of two namespaces
		t.Errorf("%d roles, %d for leases", roles, leases)
	}
}

// TestSidecarFindsTheDashboards holds that each dashboard is a ConfigMap with the label, its text unharmed, and that the
// rules come out of the templates as they went in.
func TestSidecarFindsTheDashboards(t *testing.T) {
	found := 0
	for _, o := range decode(t, render(t, "--values", "squall/ci/everything-values.yaml")) {
		switch o := o.(type) {
		case *core.ConfigMap:
			for file, text := range o.Data {
				if file == "squall.yaml" {
					continue
				}
				found++
				want, err := os.ReadFile(filepath.Join("../grafana/dashboards", file))
				if err != nil || text != strings.TrimSuffix(string(want), "\n") || o.Labels["grafana_dashboard"] != "1" || o.Namespace != "monitoring" || len(o.Name) > 63 {
					t.Errorf("%s: %+v %v", file, o.ObjectMeta, err)
				}
			}
		case *map[string]any:
			if (*o)["kind"] == "PrometheusRule" {
				checkRules(t, (*o)["spec"])
			}
		}
	}
	if found != 6 {
		t.Errorf("%d dashboards", found)
	}
}

// checkRules compares the chart's groups with those of the original.
func checkRules(t *testing.T, spec any) {
	t.Helper()
	text, err := os.ReadFile("../prometheus/squall.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var original map[string][]any
	if err := yaml.Unmarshal(text, &original); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{"groups": original["groups"][:3]}, spec); diff != "" {
		t.Error(diff)
	}
}
