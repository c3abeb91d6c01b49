package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Two sources that name one file would count its lines twice.
func TestTwoSourcesNameOneFile(t *testing.T) {
	for _, c := range []struct {
		first, second string
		refused       bool
	}{
		{"/var/log/nginx/access.log", "/var/log/nginx/access.log", true},
		{"/var/log/nginx/*.log", "/var/log/nginx/access.log", true},
		{"/var/log/nginx/access.log", "/var/log/nginx/*.log", true},
		{"/var/log/nginx/./access.log", "/var/log//nginx/access.log", true},
		{"/var/log/nginx/access.log", "/var/log/nginx/error.log", false},
		{"/var/log/nginx/*.log", "/var/log/haproxy/*.log", false},
		{"/var/log/nginx/*.log'], exclude: ['/var/log/nginx/access.log", "/var/log/nginx/access.log", false},
		{"/var/log/nginx/access.log", "/var/log/nginx/*.log'], exclude: ['/var/log/nginx/a*", false},
		{"/var/log/nginx/*.log'], exclude: ['/var/log/nginx/error.log", "/var/log/nginx/access.log", true},
	} {
		path := filepath.Join(t.TempDir(), "squall.yaml")
		text := "sources:\n  - {name: a, type: file, paths: ['" + c.first + "']}\n  - {name: b, type: file, paths: ['" + c.second + "']}\n"
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := loadAll(path, os.LookupEnv)
		if refused := err != nil && strings.Contains(err.Error(), "would count twice") && strings.Contains(err.Error(), ":3:"); refused != c.refused {
			t.Errorf("%s and %s: %v", c.first, c.second, err)
		}
	}
}
