package environment

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// serviceVariables returns the variables of the API server's service and, with
// links, of every service in the namespace that has a cluster IP.
func serviceVariables(services []*corev1.Service, namespace string, links bool) map[string]string {
	visible := map[string]*corev1.Service{}
	for _, svc := range services {
		if svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		switch {
		case svc.Namespace == MasterNamespace && svc.Name == "kubernetes":
			if _, ok := visible[svc.Name]; !ok {
				visible[svc.Name] = svc
			}
		case svc.Namespace == namespace && links:
			visible[svc.Name] = svc
		}
	}
	list := make([]*corev1.Service, 0, len(visible))
	for _, svc := range visible {
		list = append(list, svc)
	}
	// Two names can give the same variable (a-b and a_b cannot, but a-1 with a
	// port can meet a-1-port): the order decides, so it must not be the map's.
	slices.SortFunc(list, func(a, b *corev1.Service) int { return strings.Compare(a.Name, b.Name) })
	vars := map[string]string{}
	for _, svc := range list {
		addService(vars, svc)
	}
	return vars
}

func addService(vars map[string]string, svc *corev1.Service) {
	if len(svc.Spec.Ports) == 0 {
		return
	}
	name, host := variableName(svc.Name), svc.Spec.ClusterIP
	vars[name+"_SERVICE_HOST"] = host
	vars[name+"_SERVICE_PORT"] = strconv.Itoa(int(svc.Spec.Ports[0].Port))
	for i := range svc.Spec.Ports {
		port := &svc.Spec.Ports[i]
		number := strconv.Itoa(int(port.Port))
		if port.Name != "" {
			vars[name+"_SERVICE_PORT_"+variableName(port.Name)] = number
		}
		protocol := string(corev1.ProtocolTCP)
		if port.Protocol != "" {
			protocol = string(port.Protocol)
		}
		link := fmt.Sprintf("%s://%s", strings.ToLower(protocol), net.JoinHostPort(host, number))
		if i == 0 {
			vars[name+"_PORT"] = link
		}
		prefix := fmt.Sprintf("%s_PORT_%s_%s", name, number, strings.ToUpper(protocol))
		vars[prefix] = link
		vars[prefix+"_PROTO"] = strings.ToLower(protocol)
		vars[prefix+"_PORT"] = number
		vars[prefix+"_ADDR"] = host
	}
}

func variableName(s string) string {
	return strings.ToUpper(strings.ReplaceAll(s, "-", "_"))
}
