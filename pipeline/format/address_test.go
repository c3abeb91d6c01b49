package format

import "testing"

// TestAddresses: what others read otherwise (octal) is no address, and an interface's name is no part of one.
func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3": "10.1.2.3", "0.0.0.0": "0.0.0.0", "010.001.002.003": "invalid IP", "10.1.2.03": "invalid IP", "00.1.2.3": "invalid IP",
		"fe80::1": "fe80::1", "fe80::1%eth0": "fe80::1", "[fe80::1%eth0.100]": "fe80::1", "fe80::1%": "invalid IP", "%eth0": "invalid IP",
		"fe80::1%a b": "invalid IP", "10.1.2.3%eth0": "invalid IP", "::ffff:10.1.2.3": "10.1.2.3", "::ffff:010.1.2.3": "invalid IP",
	} {
		if got := addrOf([]byte(text)).String(); got != want {
			t.Errorf("%q became %s, want %s", text, got, want)
		}
	}
	if addr, port := addrPort([]byte("[fe80::1%eth0]:443")); addr.String() != "fe80::1" || port != 443 {
		t.Errorf("%s %d", addr, port)
	}
}
