package egress

import (
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
)

var (
	names     = []string{"cluster", "controlplane", "etcd"}
	protocols = []apiserver.ProtocolType{apiserver.ProtocolDirect, apiserver.ProtocolHTTPConnect, apiserver.ProtocolGRPC}
)

// validate says what is wrong, in upstream's words and at its paths.
func validate(c *apiserver.EgressSelectorConfiguration) (errs field.ErrorList) {
	at := field.NewPath("service", "connection")
	for _, s := range c.EgressSelections {
		errs = append(errs, validateConnection(s.Connection, at)...)
	}
	var seen []string
	for i, s := range c.EgressSelections {
		name := strings.ToLower(s.Name)
		switch {
		case slices.Contains(seen, name):
			errs = append(errs, field.Duplicate(at.Index(i), name))
		case !slices.Contains(names, name):
			errs = append(errs, field.NotSupported(at, name, names))
		}
		seen = append(seen, name)
	}
	return errs
}

func validateConnection(c apiserver.Connection, at *field.Path) field.ErrorList {
	t := c.Transport
	switch c.ProxyProtocol {
	case apiserver.ProtocolDirect:
		if t != nil {
			return field.ErrorList{field.Invalid(at.Child("transport"), "direct", "config must be absent for direct connect")}
		}
		return nil
	case apiserver.ProtocolHTTPConnect:
		switch {
		case t == nil:
			return field.ErrorList{field.Required(at.Child("transport"), "transport must be set for HTTPConnect")}
		case t.TCP != nil && t.UDS != nil:
			return field.ErrorList{field.Invalid(at.Child("tcp"), t.TCP, "TCP and UDS cannot both be set")}
		case t.TCP != nil:
			return validateTCP(t.TCP, at)
		case t.UDS != nil:
			return validateSocket(t.UDS, at)
		}
		return field.ErrorList{field.Required(at.Child("tcp"), "One of TCP or UDS must be set")}
	case apiserver.ProtocolGRPC:
		switch {
		case t == nil:
			return field.ErrorList{field.Required(at.Child("transport"), "transport must be set for GRPC")}
		case t.UDS == nil:
			return field.ErrorList{field.Required(at.Child("uds"), "UDS must be set with GRPC")}
		}
		return validateSocket(t.UDS, at)
	}
	return field.ErrorList{field.NotSupported(at.Child("protocol"), c.ProxyProtocol, protocols)}
}

func validateSocket(u *apiserver.UDSTransport, at *field.Path) field.ErrorList {
	if u.UDSName == "" {
		return field.ErrorList{field.Invalid(at.Child("udsName"), "nil", "must be present for UDS connections")}
	}
	return nil
}

func validateTCP(t *apiserver.TCPTransport, at *field.Path) field.ErrorList {
	switch {
	case strings.HasPrefix(t.URL, "https://"):
		return validateTLS(t.TLSConfig, at)
	case !strings.HasPrefix(t.URL, "http://"):
		return field.ErrorList{field.Invalid(at.Child("url"), t.URL, "supported connection protocols are http:// and https://")}
	case t.TLSConfig != nil:
		return field.ErrorList{field.Invalid(at.Child("tlsConfig"), "nil", "config must not be present when using HTTP")}
	}
	return nil
}

func validateTLS(t *apiserver.TLSConfig, at *field.Path) (errs field.ErrorList) {
	at = at.Child("tlsConfig")
	if t == nil {
		return field.ErrorList{field.Required(at, "TLSConfig must be present when using HTTPS")}
	}
	if t.CABundle != "" && !exists(t.CABundle) {
		errs = append(errs, field.Invalid(at.Child("caBundle"), t.CABundle, "TLS config ca bundle does not exist"))
	}
	for _, f := range []struct{ field, file, required, missing string }{
		{"clientCert", t.ClientCert, "Using TLS requires clientCert", "TLS client cert does not exist"},
		{"clientKey", t.ClientKey, "Using TLS requires requires clientKey", "TLS client key does not exist"},
	} {
		switch {
		case f.file == "":
			errs = append(errs, field.Invalid(at.Child(f.field), "nil", f.required))
		case !exists(f.file):
			errs = append(errs, field.Invalid(at.Child(f.field), f.file, f.missing))
		}
	}
	return errs
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
