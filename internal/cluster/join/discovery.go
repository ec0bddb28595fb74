package join

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
)

const (
	infoName        = "cluster-info"
	infoKey         = "kubeconfig"
	signaturePrefix = "jws-kubeconfig-"

	askTimeout   = 10 * time.Second
	maxInfo      = 1 << 20         // bytes of an answer that are read
	signingGrace = 3 * time.Second // how long a new token may take to sign
	signingPoll  = 100 * time.Millisecond
)

// Discovery finds out which certificate authority a cluster has, from a server
// that nothing is known about but its address.
type Discovery struct {
	Server string // https://host:port
	Token  Token
	// Pins are hashes of the public key of an authority ("sha256:<hex>"), one of
	// which must match. Empty: the token alone vouches for the authority.
	Pins  []string
	Clock clock.Clock // nil: the real one
}

var pinFormat = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// CheckPins says which of pins is no hash of a public key.
func CheckPins(pins []string) error {
	for _, pin := range pins {
		if !pinFormat.MatchString(strings.ToLower(pin)) {
			return fmt.Errorf("invalid public key hash %q, expected \"sha256:\" and 64 hexadecimal digits", pin)
		}
	}
	return nil
}

// Pin is the hash that pins a certificate.
func Pin(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// CheckServer says whether text is the address of an API server.
func CheckServer(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil {
		return fmt.Errorf("server %q: want an address such as https://10.0.0.1:6443", text)
	}
	return nil
}

// CA returns the cluster's certificate authorities, in PEM. It reads cluster-info
// without knowing whom it asks, believes it only if the token signed it and a
// pin, if any, matches, and then reads it again from a server that proves to be
// of that authority.
func (d Discovery) CA(ctx context.Context) ([]byte, error) {
	first, err := d.signedInfo(ctx)
	if err != nil {
		return nil, err
	}
	ca, err := authorityIn(first)
	if err != nil {
		return nil, err
	}
	if err := d.checkPins(ca); err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("the cluster-info ConfigMap holds no certificate authority")
	}
	second, err := d.read(ctx, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, err
	}
	if second.Data[infoKey] != first {
		return nil, errors.New("the second kubeconfig from the cluster-info ConfigMap (using validated TLS) was different from the first")
	}
	return ca, nil
}

// signedInfo reads cluster-info until the token's signature is there, which
// takes a moment after the token was made, and checks it.
func (d Discovery) signedInfo(ctx context.Context) (string, error) {
	clk := d.Clock
	if clk == nil {
		clk = clock.RealClock{}
	}
	for began := clk.Now(); ; {
		// Nothing secret is sent, and nothing received is trusted before its signature is.
		info, err := d.read(ctx, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
		if err != nil {
			return "", err
		}
		if signature, ok := info.Data[signaturePrefix+d.Token.ID]; ok {
			return info.Data[infoKey], verify(info.Data[infoKey], signature, d.Token)
		}
		if clk.Since(began) > signingGrace {
			return "", fmt.Errorf("could not find a JWS signature in the cluster-info ConfigMap for token ID %q: the token is wrong or has expired; make one on the server with: proa token create", d.Token.ID)
		}
		select {
		case <-clk.After(signingPoll):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func (d Discovery) read(ctx context.Context, config *tls.Config) (*corev1.ConfigMap, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	address := strings.TrimSuffix(d.Server, "/") + "/api/v1/namespaces/" + metav1.NamespacePublic + "/configmaps/" + infoName
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	transport := &http.Transport{TLSClientConfig: config, Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, unreachable(d.Server, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxInfo))
	if err != nil {
		return nil, unreachable(d.Server, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s does not show its cluster-info ConfigMap (HTTP %d): it is no API server, or one that nodes cannot join", d.Server, resp.StatusCode)
	}
	info := &corev1.ConfigMap{}
	if err := json.Unmarshal(body, info); err != nil {
		return nil, fmt.Errorf("%s: the cluster-info ConfigMap cannot be read: %w", d.Server, err)
	}
	return info, nil
}

// unreachable says what went wrong without the path that was asked for.
func unreachable(server string, err error) error {
	var asked *url.Error
	if errors.As(err, &asked) {
		err = asked.Err
	}
	var name x509.HostnameError
	if errors.As(err, &name) {
		return fmt.Errorf("%s: %w; start the server with --tls-san for this address", server, err)
	}
	return fmt.Errorf("cannot reach the API server %s: %w", server, err)
}

var errSignature = errors.New("failed to verify JWS signature of received cluster info object, can't trust this API Server")

// verify checks a JWS in compact form whose content is left out (RFC 7515,
// appendix F): HS256 with the token's secret, its ID as key ID.
func verify(content, signature string, t Token) error {
	parts := strings.Split(signature, ".")
	if len(parts) != 3 || parts[1] != "" {
		return errSignature
	}
	decode := base64.RawURLEncoding.DecodeString
	var header struct {
		Algorithm string `json:"alg"`
		KeyID     string `json:"kid"`
	}
	raw, err := decode(parts[0])
	if err != nil || json.Unmarshal(raw, &header) != nil || header.Algorithm != "HS256" || header.KeyID != t.ID {
		return errSignature
	}
	given, err := decode(parts[2])
	if err != nil {
		return errSignature
	}
	mac := hmac.New(sha256.New, []byte(t.Secret))
	mac.Write([]byte(parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(content))))
	if !hmac.Equal(given, mac.Sum(nil)) {
		return errSignature
	}
	return nil
}

func authorityIn(kubeconfig string) ([]byte, error) {
	config, err := clientcmd.Load([]byte(kubeconfig))
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig in the cluster-info ConfigMap cannot be read: %w", err)
	}
	for _, cluster := range config.Clusters {
		if len(config.Clusters) == 1 && len(cluster.CertificateAuthorityData) > 0 {
			return cluster.CertificateAuthorityData, nil
		}
	}
	return nil, errors.New("the kubeconfig in the cluster-info ConfigMap does not name one cluster with its authority")
}

func (d Discovery) checkPins(ca []byte) error {
	if len(d.Pins) == 0 {
		return nil
	}
	certs, err := cert.ParseCertsPEM(ca)
	if err != nil {
		return fmt.Errorf("the authority in the cluster-info ConfigMap cannot be read: %w", err)
	}
	var found []string
	for _, c := range certs {
		found = append(found, Pin(c))
		for _, pin := range d.Pins {
			if strings.ToLower(pin) == Pin(c) {
				return nil
			}
		}
	}
	return fmt.Errorf("cluster CA found in cluster-info ConfigMap is invalid: none of the public keys %q are pinned", found)
}
