package resourceclaim

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"proa/internal/controllers"
)

var claimCount = prometheus.NewDesc("dynamic_resource_allocation_resource_claims",
	"[ALPHA] Number of ResourceClaims, categorized by allocation status, admin access, and source.",
	[]string{"allocated", "admin_access", "source"}, nil)

// newCreations counts the claims that were made. The scheduler of the same process
// may count its own with the same counter.
func newCreations(c controllers.Config) *prometheus.CounterVec {
	creations := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dynamic_resource_allocation_resourceclaim_creates_total",
		Help: "[ALPHA] Number of ResourceClaims creation requests, categorized by creation status, admin access, and owning API group and kind",
	}, []string{"status", "admin_access", "owner_api_group", "owner_api_kind"})
	if c.Metrics == nil {
		return creations
	}
	var registered prometheus.AlreadyRegisteredError
	if errors.As(c.Metrics.Register(creations), &registered) {
		return registered.ExistingCollector.(*prometheus.CounterVec)
	}
	return creations
}

// made counts the attempt to make a claim.
func (c *Controller) made(claim *resourcev1.ResourceClaim, err error) {
	status := "success"
	if err != nil {
		status = "failure"
	}
	var owner metav1.OwnerReference
	if o := metav1.GetControllerOfNoCopy(claim); o != nil {
		owner = *o
	}
	group := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).Group
	c.creations.WithLabelValues(status, adminAccess(claim), group, owner.Kind).Inc()
}

func adminAccess(claim *resourcev1.ResourceClaim) string {
	for i := range claim.Spec.Devices.Requests {
		if e := claim.Spec.Devices.Requests[i].Exactly; e != nil && e.AdminAccess != nil && *e.AdminAccess {
			return "true"
		}
	}
	return "false"
}

// source is what a claim was made from.
func source(claim *resourcev1.ResourceClaim) string {
	switch {
	case claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true":
		return "extended_resource"
	case claim.Annotations[resourcev1.PodResourceClaimAnnotation] != "":
		return "resource_claim_template"
	}
	return ""
}

// gauge counts claims when somebody asks.
type gauge struct{ *Controller }

func (g gauge) Describe(to chan<- *prometheus.Desc) { to <- claimCount }

func (g gauge) Collect(to chan<- prometheus.Metric) {
	counts := map[[3]string]int{}
	for _, claim := range g.claims.Select("", labels.Everything()) {
		counts[[3]string{strconv.FormatBool(claim.Status.Allocation != nil), adminAccess(claim), source(claim)}]++
	}
	for of, n := range counts {
		to <- prometheus.MustNewConstMetric(claimCount, prometheus.GaugeValue, float64(n), of[0], of[1], of[2])
	}
}
