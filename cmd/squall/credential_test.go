package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCredential holds where the secrets of systemd are found, and that none is shown.
func TestCredential(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "own"), "http://own.example/abcdef\n")
	write(t, filepath.Join(dir, "squall_folder"), "http://folder.example/abcdef\n")
	env := func(name string) (string, bool) { return dir, name == "CREDENTIALS_DIRECTORY" }
	for name, want := range map[string]string{"own": "http://own.example/abcdef", "folder": "http://folder.example/abcdef"} {
		c, err := parse(t, env, "sources: [{type: stdin}]\nloki: {url: '${credential:"+name+"}'}")
		if err != nil {
			t.Fatal(err)
		}
		check(t, name, c.Loki.URL, want)
		text, err := c.Effective()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "${credential:"+name+"}") || strings.Contains(string(text), "abcdef") {
			t.Errorf("the secret is printed: %s", text)
		}
	}
	for _, bad := range []string{"../own", "", "..", "sub/own", "none"} {
		if _, err := parse(t, env, "loki: {url: '${credential:"+bad+"}'}"); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	_, err := parse(t, func(string) (string, bool) { return "", false }, "loki: {url: '${credential:pager}'}")
	if _, statErr := os.Stat(filepath.Join(credentialFolder, "pager")); os.IsNotExist(statErr) && (err == nil || !strings.Contains(err.Error(), credentialFolder)) {
		t.Errorf("without systemd it is looked for in %s: %v", credentialFolder, err)
	}
}

func parse(t *testing.T, env func(string) (string, bool), text string) (*Config, error) {
	t.Helper()
	c, faults, err := parseConfig("c.yaml", []byte(text), env)
	if err == nil {
		err = faults.sorted()
	}
	return c, err
}
