package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// An nginxLog is one access_log of nginx's configuration.
type nginxLog struct {
	path   string   // as it is there: with variables, perhaps
	format string   // the name of its log_format
	hosts  []string // of the one server that writes it; empty: of none or of several
}

// An nginxFound is what nginx's configuration tells of its logs and sites.
type nginxFound struct {
	logs    []nginxLog
	errors  []string          // paths of error logs
	formats map[string]string // log_format strings by name
	servers [][]string        // server_name of each server
	odd     []string          // access logs that are no files
}

// nginxWords cuts a configuration into its words; ; { } are words of their own.
func nginxWords(text string) (words []string) {
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			i++
		case c == '#':
			if end := strings.IndexByte(text[i:], '\n'); end >= 0 {
				i += end
			} else {
				i = len(text)
			}
		case strings.IndexByte(";{}", c) >= 0:
			words = append(words, string(c))
			i++
		case c == '"' || c == '\'':
			var word string
			word, i = quotedWord(text, i)
			words = append(words, "\x00"+word) // quoted: never ; { }
		default:
			end := i
			for end < len(text) && strings.IndexByte(" \t\r\n;", text[end]) < 0 && (text[end] != '{' || text[end-1] == '$') {
				if end++; text[end-1] == '{' { // ${variable}
					for end < len(text) && text[end] != '}' {
						end++
					}
					end = min(end+1, len(text))
				}
			}
			end = max(end, i+1)
			words = append(words, text[i:end])
			i = end
		}
	}
	return words
}

// quotedWord reads the word that begins with the quote at i.
func quotedWord(text string, i int) (word string, end int) {
	var b strings.Builder
	quote := text[i]
	for i++; i < len(text) && text[i] != quote; i++ {
		if text[i] == '\\' && i+1 < len(text) && (text[i+1] == quote || text[i+1] == '\\') {
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String(), i + 1
}

// A nginxReader goes through directives.
type nginxReader struct {
	found  nginxFound
	blocks []string
	hosts  []string   // of the server at hand
	logs   []nginxLog // of the server at hand
}

// readNginx reads a configuration as `nginx -T` prints it: the files one after the other.
func readNginx(text string) nginxFound {
	r := &nginxReader{found: nginxFound{formats: map[string]string{}}}
	var directive []string
	for _, word := range nginxWords(text) {
		switch word {
		case ";":
			r.directive(directive)
			directive = nil
		case "{":
			name := ""
			if len(directive) > 0 {
				name = directive[0]
			}
			r.blocks = append(r.blocks, name)
			directive = nil
		case "}":
			r.end()
			directive = nil
		default:
			directive = append(directive, strings.TrimPrefix(word, "\x00"))
		}
	}
	return r.found
}

func (r *nginxReader) directive(d []string) {
	if len(d) < 2 {
		return
	}
	switch d[0] {
	case "log_format":
		from := 2
		if len(d) > 2 && strings.HasPrefix(d[2], "escape=") {
			from = 3
		}
		r.found.formats[d[1]] = strings.Join(d[from:], "")
	case "access_log":
		r.accessLog(d)
	case "error_log":
		if filepath.IsAbs(d[1]) && !strings.HasPrefix(d[1], "/dev/") && !slices.Contains(r.found.errors, d[1]) {
			r.found.errors = append(r.found.errors, d[1])
		}
	case "server_name":
		if slices.Contains(r.blocks, "server") {
			r.hosts = append(r.hosts, d[1:]...)
		}
	}
}

func (r *nginxReader) accessLog(d []string) {
	switch {
	case d[1] == "off":
		return
	case !filepath.IsAbs(d[1]) || strings.HasPrefix(d[1], "/dev/"):
		r.found.odd = append(r.found.odd, d[1])
		return
	}
	log := nginxLog{path: d[1], format: "combined"}
	if len(d) > 2 && !strings.Contains(d[2], "=") {
		log.format = d[2]
	}
	if slices.Contains(r.blocks, "server") {
		r.logs = append(r.logs, log)
		return
	}
	r.add(log)
}

// end leaves a block.
func (r *nginxReader) end() {
	if len(r.blocks) == 0 {
		return
	}
	name := r.blocks[len(r.blocks)-1]
	r.blocks = r.blocks[:len(r.blocks)-1]
	if name != "server" || slices.Contains(r.blocks, "upstream") {
		return
	}
	hosts := plainHosts(r.hosts)
	if len(hosts) > 0 {
		r.found.servers = append(r.found.servers, hosts)
	}
	for _, log := range r.logs {
		log.hosts = hosts
		r.add(log)
	}
	r.hosts, r.logs = nil, nil
}

// add notes a log once; one that several servers write is no server's.
func (r *nginxReader) add(log nginxLog) {
	i := slices.IndexFunc(r.found.logs, func(l nginxLog) bool { return l.path == log.path && l.format == log.format })
	if i < 0 {
		r.found.logs = append(r.found.logs, log)
		return
	}
	if !slices.Equal(r.found.logs[i].hosts, log.hosts) {
		r.found.logs[i].hosts = nil
	}
}

// plainHosts leaves out patterns and what is no name.
func plainHosts(names []string) (hosts []string) {
	for _, n := range names {
		if n == "" || n == "_" || n == "localhost" || strings.ContainsAny(n, "*~$\"") || strings.HasPrefix(n, ".") || !strings.Contains(n, ".") ||
			slices.Contains(hosts, n) {
			continue
		}
		hosts = append(hosts, n)
	}
	return hosts
}

// glob is the pattern of an access log's path: what a variable stands for is not known.
func (l nginxLog) glob() string {
	var b strings.Builder
	for i := 0; i < len(l.path); i++ {
		if l.path[i] != '$' {
			b.WriteByte(l.path[i])
			continue
		}
		b.WriteByte('*')
		if i+1 < len(l.path) && l.path[i+1] == '{' {
			for i < len(l.path)-1 && l.path[i] != '}' {
				i++
			}
			continue
		}
		for i+1 < len(l.path) && (l.path[i+1] == '_' || l.path[i+1] >= 'a' && l.path[i+1] <= 'z' || l.path[i+1] >= '0' && l.path[i+1] <= '9') {
			i++
		}
	}
	return b.String()
}

const (
	maxNginxFiles = 1000
	maxNginxBytes = 8 << 20
)

// nginxFiles reads a configuration and what it includes, one after the other, as `nginx -T` does. root is put before
// absolute paths.
func nginxFiles(root, path string) (string, error) {
	var out strings.Builder
	seen := map[string]bool{}
	base := filepath.Dir(path)
	for queue := []string{path}; len(queue) > 0 && len(seen) < maxNginxFiles && out.Len() < maxNginxBytes; queue = queue[1:] {
		file := filepath.Join(root, queue[0])
		if seen[file] {
			continue
		}
		seen[file] = true
		text, err := os.ReadFile(file)
		if err != nil {
			if len(seen) == 1 {
				return "", err
			}
			continue // an include that matches nothing to read
		}
		out.Write(text)
		out.WriteByte('\n')
		var directive []string
		for _, word := range nginxWords(string(text)) {
			if word != ";" && word != "{" && word != "}" {
				directive = append(directive, strings.TrimPrefix(word, "\x00"))
				continue
			}
			if word == ";" && len(directive) == 2 && directive[0] == "include" {
				pattern := directive[1]
				if !filepath.IsAbs(pattern) {
					pattern = filepath.Join(base, pattern)
				}
				found, err := filepath.Glob(filepath.Join(root, pattern))
				if err == nil {
					for _, f := range found {
						queue = append(queue, "/"+strings.TrimPrefix(strings.TrimPrefix(f, filepath.Clean(root)), "/"))
					}
				}
			}
			directive = nil
		}
	}
	return out.String(), nil
}
