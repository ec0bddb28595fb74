package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// EventRateLimit refuses events beyond the rates of its configuration. Off unless
// enabled.
type EventRateLimit struct{ limits []*eventLimit }

// eventLimit is one limit, with a bucket for each of what it tells apart.
type eventLimit struct {
	kind       string
	qps, burst int32
	clock      clock.PassiveClock

	mu      sync.Mutex // guards the rest
	buckets *lru.Cache
}

// eventKeys say which bucket an event falls in.
var eventKeys = map[string]func(*Attributes) string{
	"Server":    func(*Attributes) string { return "" },
	"Namespace": func(a *Attributes) string { return a.Namespace },
	"User": func(a *Attributes) string {
		if a.User == nil {
			return ""
		}
		return a.User.GetName()
	},
	"SourceAndObject": func(a *Attributes) string {
		e, ok := a.Object.(*corev1.Event)
		if !ok {
			return ""
		}
		o := e.InvolvedObject
		return strings.Join([]string{e.Source.Component, e.Source.Host, o.Kind, o.Namespace, o.Name, string(o.UID), o.APIVersion}, "")
	},
}

var eventLimitTypes = []string{"Namespace", "Server", "SourceAndObject", "User"}

// NewEventRateLimit reads the configuration; nil sets no limit.
func NewEventRateLimit(config []byte, c clock.PassiveClock) (EventRateLimit, error) {
	if c == nil {
		c = clock.RealClock{}
	}
	var document struct {
		metav1.TypeMeta `json:",inline"`
		Limits          []struct {
			Type      string `json:"type"`
			QPS       int32  `json:"qps"`
			Burst     int32  `json:"burst"`
			CacheSize int32  `json:"cacheSize"`
		} `json:"limits"`
	}
	var p EventRateLimit
	if err := pluginDocument(config, "eventratelimit.admission.k8s.io/v1alpha1", &document); err != nil {
		return p, err
	}
	var errs field.ErrorList
	at := field.NewPath("limits")
	if len(document.Limits) == 0 {
		errs = append(errs, field.Invalid(at, document.Limits, "must not be empty"))
	}
	for i, l := range document.Limits {
		if eventKeys[l.Type] == nil {
			errs = append(errs, field.NotSupported(at.Index(i).Child("type"), l.Type, eventLimitTypes))
		}
		if l.Burst <= 0 {
			errs = append(errs, field.Invalid(at.Index(i).Child("burst"), l.Burst, "must be positive"))
		}
		if l.QPS <= 0 {
			errs = append(errs, field.Invalid(at.Index(i).Child("qps"), l.QPS, "must be positive"))
		}
		if l.CacheSize < 0 && l.Type != "Server" {
			errs = append(errs, field.Invalid(at.Index(i).Child("cacheSize"), l.CacheSize, "must not be negative"))
		}
		size := int(l.CacheSize)
		if size <= 0 {
			size = 4096
		}
		p.limits = append(p.limits, &eventLimit{kind: l.Type, qps: l.QPS, burst: l.Burst, clock: c, buckets: lru.New(size)})
	}
	return p, errs.ToAggregate()
}

func (EventRateLimit) Name() string { return "EventRateLimit" }

func (p EventRateLimit) Validate(_ context.Context, a *Attributes) error {
	if a.DryRun || a.Resource.Kind != "Event" || a.Operation != admissionv1.Create && a.Operation != admissionv1.Update {
		return nil
	}
	var errs []error
	for _, l := range p.limits {
		if key := eventKeys[l.kind](a); !l.accepts(key) {
			errs = append(errs, fmt.Errorf("limit reached on type %v for key %v", l.kind, key))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	text := errors.Join(errs...).Error()
	if len(errs) > 1 {
		text = "[" + strings.ReplaceAll(text, "\n", ", ") + "]"
	}
	return apierrors.NewTooManyRequestsError(text)
}

func (l *eventLimit) accepts(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	bucket, ok := l.buckets.Get(key)
	if !ok {
		bucket = flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(float32(l.qps), int(l.burst), l.clock)
		l.buckets.Add(key, bucket)
	}
	return bucket.(flowcontrol.PassiveRateLimiter).TryAccept()
}
