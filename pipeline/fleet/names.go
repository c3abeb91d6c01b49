package fleet

import (
	"cmp"
	"fmt"
	"strings"
)

const maxName = 253 // bytes, as a DNS name has

// checkCluster tells whether name may be a part of the names of streams and buckets.
func checkCluster(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("the cluster's name has %d bytes: 1 to %d are allowed", len(name), maxName)
	}
	for _, c := range []byte(name) {
		if !isWord(c) {
			return fmt.Errorf("the cluster's name %q may have letters, digits, - and _", name)
		}
	}
	return nil
}

// checkNode tells whether name may be tokens of a subject: none is empty or a wildcard. ~ stands for the dot in inboxes.
func checkNode(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("the node's name has %d bytes: 1 to %d are allowed", len(name), maxName)
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' || strings.IndexByte("*>~", c) >= 0 {
			return fmt.Errorf("the node's name %q may have no spaces, *, >, ~ and nothing but ASCII", name)
		}
	}
	if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.Contains(name, "..") {
		return fmt.Errorf("the node's name %q has a dot with nothing beside it", name)
	}
	return nil
}

func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// Subjects of a cluster, of which the last tokens are a node's name.
func panePrefix(cluster string) string  { return "squall." + cluster + ".pane." }
func coverPrefix(cluster string) string { return "squall." + cluster + ".cover." }

func streamName(cluster string) string { return "SQUALL_" + cluster }

// InboxPrefix is where the answers to a node go: what a server's configuration has to let it subscribe to, with .>
// behind. Dots are ~ there, so that no node's inbox lies within another's.
func InboxPrefix(node string) string { return "_INBOX_" + strings.ReplaceAll(node, ".", "~") }

// CheckNames tells whether a cluster and a node may have these names.
func CheckNames(cluster, node string) error {
	return cmp.Or(checkCluster(cluster), checkNode(node))
}
