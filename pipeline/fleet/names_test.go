package fleet

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"lb1": true, "lb1.fra.example": true, "LB_1-a:9": true, strings.Repeat("a", 253): true,
		"": false, strings.Repeat("a", 254): false, ".": false, "a.": false, ".a": false, "a..b": false, "a b": false, "a*": false,
		"*": false, "a.>": false, ">": false, "a\tb": false, "a\x00": false, "a\r\nPUB x 1": false, "bär": false, "a~b": false,
	} {
		if err := checkNode(name); (err == nil) != ok {
			t.Errorf("the node %q: %v", name, err)
		}
	}
	for name, ok := range map[string]bool{"shop": true, "a-b_C9": true, "": false, "a.b": false, "a*": false, "a b": false, "ä": false, strings.Repeat("a", 254): false} {
		if err := checkCluster(name); (err == nil) != ok {
			t.Errorf("the cluster %q: %v", name, err)
		}
	}
}

// No node's inbox is that of another, or within it.
func TestInboxesAreApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.StringMatching(`[ab_~:.]{1,6}`).Filter(func(s string) bool { return checkNode(s) == nil })
		a, b := names.Draw(t, "a"), names.Draw(t, "b")
		if a != b && (InboxPrefix(a) == InboxPrefix(b) || strings.HasPrefix(InboxPrefix(a)+".", InboxPrefix(b)+".")) {
			t.Fatalf("%q and %q share %q", a, b, InboxPrefix(a))
		}
		if strings.ContainsAny(InboxPrefix(a), ".*> ") {
			t.Fatalf("%q has the inbox %q", a, InboxPrefix(a))
		}
	})
}
