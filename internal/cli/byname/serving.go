package byname

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// serving is where a daemon listens, and the certificate that it shows there.
type serving struct {
	pair         string // name of the files below certDir
	bindAddress  net.IP
	port         int
	certDir      string
	certFile     string
	keyFile      string
	clientCAFile string
}

func (s *serving) add(fs *pflag.FlagSet, pair string, port int) {
	s.pair = pair
	fs.IPVar(&s.bindAddress, "bind-address", net.IPv4zero, "address to listen on; 0.0.0.0 or ::: every address")
	fs.IntVar(&s.port, "secure-port", port, "port that serves HTTPS")
	fs.StringVar(&s.certDir, "cert-dir", "/var/run/kubernetes", "where the certificate is, or is made, when --tls-cert-file and --tls-private-key-file are not given")
	fs.StringVar(&s.certFile, "tls-cert-file", "", "serving certificate, followed by those of its authorities")
	fs.StringVar(&s.keyFile, "tls-private-key-file", "", "key of the serving certificate")
	fs.StringVar(&s.clientCAFile, "client-ca-file", "", "certificate authorities of clients that authenticate with a certificate")
}

// listen binds the port.
func (s *serving) listen() (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(s.bindAddress.String(), strconv.Itoa(s.port)))
	if err != nil {
		return nil, fmt.Errorf("failed to create listener: %w", err)
	}
	return l, nil
}

// tls reads the certificate, making one where none is named and none is in the
// certificate directory.
func (s *serving) tls(names []string, ips []net.IP) (*tls.Config, error) {
	certFile, keyFile := s.certFile, s.keyFile
	if (certFile == "") != (keyFile == "") {
		return nil, errors.New("--tls-cert-file and --tls-private-key-file come together")
	}
	if certFile == "" {
		certFile, keyFile = filepath.Join(s.certDir, s.pair+".crt"), filepath.Join(s.certDir, s.pair+".key")
		if err := selfSigned(certFile, keyFile, names, ips); err != nil {
			return nil, err
		}
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{pair}}
	c.ClientCAs, err = pool("--client-ca-file", s.clientCAFile)
	return c, err
}

// selfSigned makes a certificate unless there is one.
func selfSigned(certFile, keyFile string, names []string, ips []net.IP) error {
	if _, err := os.Stat(certFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey("localhost", ips, names)
	if err != nil {
		return fmt.Errorf("self-signed certificate: %w", err)
	}
	if err := certutil.WriteCert(certFile, cert); err != nil {
		return err
	}
	return keyutil.WriteKey(keyFile, key)
}

// pool reads certificate authorities; nil where no file is named.
func pool(flag, file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	p, err := certutil.NewPool(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return p, nil
}
