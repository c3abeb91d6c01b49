package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/squall-sre/squall/pipeline"
	"github.com/squall-sre/squall/pipeline/format"
)

// deployed reads a file of deploy/.
func deployed(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// examples gives the lines behind a comment sign that are configuration: those that are indented by three.
func examples(text, comment string) (list []string) {
	for line := range strings.Lines(text) {
		if line, ok := strings.CutPrefix(line, comment+"   "); ok {
			list = append(list, line)
		}
	}
	return list
}

// loads checks that a text is a configuration of squall.
func loads(t *testing.T, what, text string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "squall.yaml")
	write(t, path, text)
	if _, err := loadConfig(path, os.LookupEnv); err != nil {
		t.Errorf("%s: %v\n%s", what, err, text)
	}
}

// runs checks that a program takes what it is given.
func runs(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Errorf("%s %q: %v\n%s", program, args, err, out)
	}
}

var oneSource = regexp.MustCompile(`sources: \[.*\]`)

// TestNginxHowTo holds that nginx takes the file and all that it proposes, and that its log_format is the one that real
// nginx is tested with.
func TestNginxHowTo(t *testing.T) {
	text := deployed(t, "nginx/squall.conf")
	_, rest, _ := strings.Cut(text, "log_format squall ")
	quoted, _, _ := strings.Cut(rest, ";\n")
	parts := regexp.MustCompile(`'([^']*)'`).FindAllStringSubmatch(quoted, -1)
	is := ""
	for _, p := range parts {
		is += p[1]
	}
	check(t, "log_format", is, format.RecommendedNginx)
	loads(t, "nginx", oneSource.FindString(text))

	dir := t.TempDir()
	var inHTTP, inServer strings.Builder
	for _, line := range examples(text, "#") {
		if strings.HasPrefix(strings.TrimSpace(line), "location") {
			inServer.WriteString(line)
		} else {
			inHTTP.WriteString(line)
		}
	}
	if strings.Count(inHTTP.String(), ";") < 6 || strings.Count(inServer.String(), "location") != 3 {
		t.Fatalf("the proposals are not found: %s%s", &inHTTP, &inServer)
	}
	write(t, filepath.Join(dir, "squall.conf"), strings.ReplaceAll(text, "/var/log/nginx/", dir+"/"))
	params, err := os.ReadFile("/etc/nginx/fastcgi_params")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "fastcgi_params"), string(params))
	write(t, filepath.Join(dir, "nginx.conf"), fmt.Sprintf(
		"pid %s/pid;\nerror_log stderr;\nevents {}\nhttp {\ninclude squall.conf;\n%s\nserver { listen 127.0.0.1:1; limit_req zone=pages;\n%s}\n}\n", dir, &inHTTP, &inServer))
	runs(t, command(t, "nginx"), "-t", "-q", "-p", dir, "-c", filepath.Join(dir, "nginx.conf"))
}

// TestHAProxyHowTo holds that a real HAProxy with the file sends lines that tell host and agent.
func TestHAProxyHowTo(t *testing.T) {
	text := deployed(t, "haproxy/squall.cfg")
	loads(t, "haproxy", oneSource.FindString(text))
	src, items := roadOf(t, "syslog", "haproxy", "{type: syslog, listen: ['udp://127.0.0.1:0']}")
	eventually(t, "it listens", func() bool { return src.States()[0].State == "reading" })
	listen := strings.TrimPrefix(src.States()[0].Path, "udp://")

	dir, web := t.TempDir(), freeAddress(t)
	frontend := examples(text, "#")
	if len(frontend) != 4 {
		t.Fatalf("%d lines of a frontend: %q", len(frontend), frontend)
	}
	write(t, filepath.Join(dir, "squall.cfg"), strings.ReplaceAll(text, "127.0.0.1:5140", listen))
	write(t, filepath.Join(dir, "web.cfg"), strings.Join(frontend, "")+"    bind "+web+"\n    http-request return status 200 content-type text/plain string ok\n")
	launchDaemon(t, dir, []string{command(t, "haproxy"), "-db", "-f", filepath.Join(dir, "squall.cfg"), "-f", filepath.Join(dir, "web.cfg")}, web)
	req, err := http.NewRequest(http.MethodHead, "http://"+web+"/checkout/7", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "shop.example"
	req.Header.Set("User-Agent", browserAgent)
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	eventually(t, "the request is a Record", func() bool {
		for _, item := range items() {
			r := item.Record
			if item.Kind == pipeline.IsRecord && string(r.Path) == "/checkout/7" && string(r.Host) == "shop.example" && string(r.UserAgent) == browserAgent {
				return true
			}
		}
		return false
	})
}

// TestPHPHowTo holds that php-fpm takes the file, and that its access.format is the one that a real php-fpm is tested with.
func TestPHPHowTo(t *testing.T) {
	text := deployed(t, "php-fpm/squall.conf")
	if want := `access.format = "` + strings.ReplaceAll(phpAccess, `"`, `\"`) + `"`; !strings.Contains(text, "\n"+want+"\n") {
		t.Errorf("it has no %s", want)
	}
	if !strings.Contains(text, "log_format: '"+phpAccess+"'}") {
		t.Error("squall is told of another format")
	}
	source := strings.Join(examples(text, ";"), "")
	if !strings.HasPrefix(source, "sources:\n") {
		t.Fatal(source)
	}
	loads(t, "php-fpm", source)
	dir := t.TempDir()
	pool := "[global]\nerror_log = " + dir + "/fpm.log\n[www]\nuser = www-data\ngroup = www-data\nlisten = 127.0.0.1:1\npm = static\npm.max_children = 2\n" +
		strings.ReplaceAll(text, "/var/log/php-fpm", dir)
	write(t, filepath.Join(dir, "fpm.conf"), pool)
	runs(t, phpFPM(t), "-t", "-y", filepath.Join(dir, "fpm.conf"))
}

// TestAWSHowTo holds that the example is a configuration, and the policies are JSON that allows what squall asks for.
func TestAWSHowTo(t *testing.T) {
	text := deployed(t, "aws/README.md")
	_, rest, _ := strings.Cut(text, "```yaml\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("there is no example")
	}
	loads(t, "aws", example)
	for _, name := range []string{"bucket-policy.json", "queue-policy.json", "notification.json", "reader-policy.json"} {
		var tree map[string]any
		if err := json.Unmarshal([]byte(deployed(t, "aws/"+name)), &tree); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !strings.Contains(text, name) {
			t.Errorf("%s is not told of", name)
		}
	}
	reader := deployed(t, "aws/reader-policy.json")
	for _, action := range []string{"s3:ListBucket", "s3:GetObject", "sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility",
		"sqs:GetQueueAttributes"} { // the last for the doctor alone
		if !strings.Contains(reader, `"`+action+`"`) {
			t.Errorf("squall may not %s", action)
		}
	}
}
