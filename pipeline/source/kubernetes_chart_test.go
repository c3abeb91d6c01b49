//go:build k8s

package source

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	kuberest "k8s.io/client-go/rest"
)

// resources are the API's names of the kinds that the chart makes. Those of the Prometheus Operator are no part of the
// API without it.
var resources = map[string]string{
	"ConfigMap": "configmaps", "ServiceAccount": "serviceaccounts", "DaemonSet": "daemonsets", "Deployment": "deployments",
	"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "Role": "roles", "RoleBinding": "rolebindings",
	"NetworkPolicy": "networkpolicies", "StatefulSet": "statefulsets", "Service": "services", "PodDisruptionBudget": "poddisruptionbudgets",
	"PodMonitor": "", "PrometheusRule": "",
}

// TestKubernetesTakesTheChart holds that a real API server takes all that the chart makes, with no field that it does not
// know: a server-side dry run.
func TestKubernetesTakesTheChart(t *testing.T) {
	a := startAPI(t)
	client, err := dynamic.NewForConfig(&kuberest.Config{
		Host: "https://" + a.address, BearerToken: adminToken, TLSClientConfig: kuberest.TLSClientConfig{CAData: a.ca},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"squall", "shop", "blog", "monitoring"} {
		ns := &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := a.admin.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob("../../deploy/kubernetes/testdata/*.golden.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("%q: %v", files, err)
	}
	for _, file := range files {
		taken := map[string]int{}
		for _, o := range rendered(t, file) {
			resource, known := resources[o.GetKind()]
			if !known {
				t.Errorf("%s: a %s", file, o.GetKind())
			}
			if resource == "" {
				continue
			}
			gv, err := schema.ParseGroupVersion(o.GetAPIVersion())
			if err != nil {
				t.Fatal(err)
			}
			var in dynamic.ResourceInterface = client.Resource(gv.WithResource(resource))
			if o.GetNamespace() != "" {
				in = client.Resource(gv.WithResource(resource)).Namespace(o.GetNamespace())
			}
			if _, err := in.Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}); err != nil {
				t.Errorf("%s: %s %s: %v", file, o.GetKind(), o.GetName(), err)
			}
			taken[o.GetKind()]++
		}
		workloads := taken["DaemonSet"] + taken["Deployment"] + taken["StatefulSet"]
		if taken["DaemonSet"] != 1 || workloads < 2 || taken["ConfigMap"] != workloads || taken["ServiceAccount"] != workloads {
			t.Errorf("%s: %v", file, taken)
		}
	}
	// The dry run means what it says of a wrong field.
	wrong := rendered(t, files[0])[0]
	wrong.Object["dta"] = map[string]any{}
	in := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: resources[wrong.GetKind()]}).Namespace("squall")
	if _, err := in.Create(t.Context(), wrong, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}); err == nil || !strings.Contains(err.Error(), "dta") {
		t.Errorf("a wrong field: %v", err)
	}
}

// rendered reads what the chart made.
func rendered(t *testing.T, file string) (objects []*unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		doc, err := docs.Read()
		if err == io.EOF { //nolint:errorlint // as the reader says it
			return objects
		}
		o := &unstructured.Unstructured{}
		if err == nil {
			err = yaml.Unmarshal(doc, &o.Object)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}
