package networking

import (
	"strconv"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"proa/internal/apis"
)

// Ingresses is the networking.k8s.io/v1 ingresses resource.
var Ingresses = apis.Resource{
	Group: "networking.k8s.io", Version: "v1", Kind: "Ingress", Plural: "ingresses", Short: []string{"ing"},
	ChecksNameOnUpdate: true,
	New:                apis.New[networkingv1.Ingress], NewList: apis.NewList[networkingv1.IngressList],
	Subresources: []apis.Subresource{
		apis.Writable("status", func(i, old *networkingv1.Ingress) { i.Spec = old.Spec }, validateIngressStatusUpdate),
	},
	PrepareCreate:  apis.On(func(i *networkingv1.Ingress) { i.Status = networkingv1.IngressStatus{} }),
	PrepareUpdate:  apis.OnUpdate(func(i, old *networkingv1.Ingress) { i.Status = old.Status }),
	Validate:       apis.Check(validateIngressCreate),
	ValidateUpdate: apis.CheckUpdate(validateIngressUpdate),
	Warnings: apis.Warn(func(i, _ *networkingv1.Ingress) []string {
		if _, old := i.Annotations[classAnnotation]; old {
			return []string{`annotation "` + classAnnotation + `" is deprecated, please use 'spec.ingressClassName' instead`}
		}
		return nil
	}),
	Columns: []metav1.TableColumnDefinition{
		apis.NameColumn,
		apis.Column("Class", "string", "The name of the IngressClass resource that should be used for additional configuration"),
		apis.Column("Hosts", "string", "Hosts that incoming requests are matched against before the ingress rule"),
		apis.Column("Address", "string", "Address is a list containing ingress points for the load-balancer"),
		apis.Column("Ports", "string", "Ports of TLS configurations that open"),
		apis.AgeColumn,
	},
	Row: apis.Cells(ingressRow),
}

const classAnnotation = "kubernetes.io/ingress.class"

func ingressRow(i *networkingv1.Ingress, now time.Time) []any {
	class := "<none>"
	if i.Spec.IngressClassName != nil {
		class = *i.Spec.IngressClassName
	}
	ports := "80"
	if len(i.Spec.TLS) > 0 {
		ports = "80, 443"
	}
	return []any{i.Name, class, printHosts(i.Spec.Rules), printAddresses(i.Status.LoadBalancer.Ingress), ports, apis.AgeOf(i, now)}
}

func printHosts(rules []networkingv1.IngressRule) string {
	var hosts []string
	for i, r := range rules {
		if len(hosts) == 3 {
			return strings.Join(hosts, ",") + " + " + strconv.Itoa(len(rules)-i) + " more..."
		}
		if r.Host != "" {
			hosts = append(hosts, r.Host)
		}
	}
	if len(hosts) == 0 {
		return "*"
	}
	return strings.Join(hosts, ",")
}

func printAddresses(ingress []networkingv1.IngressLoadBalancerIngress) string {
	addresses := sets.New[string]()
	for _, in := range ingress {
		if a := apis.Or(in.IP, in.Hostname); a != "" {
			addresses.Insert(a)
		}
	}
	return strings.Join(sets.List(addresses), ",")
}

func joinOrNone(list []string) string {
	if len(list) == 0 {
		return "<none>"
	}
	return strings.Join(list, ",")
}
