package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// selfSigned writes a certificate of shop.example and loopback and its key into one file, as HAProxy wants them, and gives
// the configuration of clients that trust it.
func selfSigned(t *testing.T, path string) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"shop.example"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	write(t, path, string(certificate)+string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	return &tls.Config{RootCAs: roots, ServerName: "shop.example"}
}

// TestRealHAProxyOverTLS reads httpslog where there is a handshake to tell of: the name that the client named in it is
// the site, as no header is captured. HTTP/2 is agreed on in the handshake.
func TestRealHAProxyOverTLS(t *testing.T) {
	balancer{
		config: "haproxy-tls.cfg", command: []string{"haproxy", "-db", "-f", "@CONFIG@"}, tls: true,
		says: map[string]string{
			"/gone1": "GET /gone1 shop.example 504 127.0.0.9 external stayed", // over HTTP/1 it does not look, and waits itself
			"/gone2": "GET /gone2 shop.example 0 127.0.0.9 external left",
		},
		logs: []balancerLog{{file: "output", choice: formatChoice{name: "haproxy", settings: formatSettings{LogFormat: "{X-Forwarded-For}"}}, holds: " shop.example/TLSv1."}},
	}.test(t)
}
