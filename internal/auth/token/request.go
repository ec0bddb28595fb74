package token

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/warning"

	"proa/internal/store"
)

const (
	minLife     = 10 * time.Minute
	defaultLife = time.Hour

	// projectedLife is what admission asks for in the volumes it adds to pods.
	// Such tokens really live extendedLife, and their use past projectedLife is
	// reported: old clients that read the file once keep working.
	projectedLife = 3607 * time.Second
	extendedLife  = 365 * 24 * time.Hour
)

var tokenRequestKind = schema.GroupKind{Group: "authentication.k8s.io", Kind: "TokenRequest"}

// binding is what a token is tied to.
type binding struct{ pod, secret, node *ref }

// Request issues the token that req asks for, for the service account of the
// path, and returns req with its status. The caller has run admission.
func (s *Service) Request(ctx context.Context, namespace, name string, req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	if err := matchPath(req, namespace, name); err != nil {
		return nil, err
	}
	sn := s.store.Snapshot()
	sa, err := get[*corev1.ServiceAccount](sn, serviceAccounts, namespace, name)
	if err != nil {
		return nil, err
	}
	if req.UID != "" && req.UID != sa.UID {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: tokenRequestKind.Group, Resource: tokenRequestKind.Kind}, name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID, sa.UID))
	}
	now := s.clock.Now()
	s.complete(req, sa, now)
	if errs := validate(req); len(errs) > 0 {
		return nil, apierrors.NewInvalid(tokenRequestKind, "", errs)
	}
	to, err := bind(sn, sa, req.Spec.BoundObjectRef)
	if err != nil {
		return nil, err
	}
	life, warnAfter := s.life(ctx, req, to)
	jti := uuid.NewString()
	token, err := s.sign(ctx, s.boundClaims(sa, to, req.Spec.Audiences, jti, now, life, warnAfter))
	if err != nil {
		return nil, fmt.Errorf("failed to generate token: %w", err)
	}
	audit.AddAuditAnnotation(ctx, serviceaccount.IssuedCredentialIDAuditAnnotationKey, credentialID(jti))
	asked := time.Duration(*req.Spec.ExpirationSeconds) * time.Second
	req.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(now.Add(asked))}
	return req, nil
}

func matchPath(req *authenticationv1.TokenRequest, namespace, name string) error {
	var errs field.ErrorList
	meta := field.NewPath("metadata")
	if req.Name != "" && req.Name != name {
		errs = append(errs, field.Invalid(meta.Child("name"), req.Name, "must match the service account name if specified"))
	}
	if req.Namespace != "" && req.Namespace != namespace {
		errs = append(errs, field.Invalid(meta.Child("namespace"), req.Namespace, "must match the service account namespace if specified"))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(tokenRequestKind, name, errs)
	}
	return nil
}

func (s *Service) complete(req *authenticationv1.TokenRequest, sa *corev1.ServiceAccount, now time.Time) {
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = slices.Clone(s.audiences)
	}
	if req.Spec.ExpirationSeconds == nil {
		seconds := int64(defaultLife / time.Second)
		req.Spec.ExpirationSeconds = &seconds
	}
	req.Name, req.Namespace, req.UID = sa.Name, sa.Namespace, sa.UID
	req.CreationTimestamp = metav1.NewTime(now)
	req.Status = authenticationv1.TokenRequestStatus{}
}

func validate(req *authenticationv1.TokenRequest) field.ErrorList {
	path, seconds := field.NewPath("spec", "expirationSeconds"), *req.Spec.ExpirationSeconds
	switch {
	case seconds < int64(minLife/time.Second):
		return field.ErrorList{field.Invalid(path, seconds, "may not specify a duration less than 10 minutes")}
	case seconds > 1<<32:
		return field.ErrorList{field.Invalid(path, seconds, "may not specify a duration larger than 2^32 seconds")}
	}
	return nil
}

// bind resolves the object a token shall be bound to and checks that it is the
// one the client means.
func bind(sn *store.Snapshot, sa *corev1.ServiceAccount, to *authenticationv1.BoundObjectReference) (binding, error) {
	var b binding
	if to == nil {
		return b, nil
	}
	if to.Name == "" {
		return b, apierrors.NewBadRequest("Name parameter required.")
	}
	gvk := schema.FromAPIVersionAndKind(to.APIVersion, to.Kind)
	var target *ref
	switch {
	case gvk.Group == "" && gvk.Kind == "Pod":
		pod, err := get[*corev1.Pod](sn, pods, sa.Namespace, to.Name)
		if err != nil {
			return b, err
		}
		if pod.Spec.ServiceAccountName != sa.Name {
			return b, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", sa.Name))
		}
		b.pod = refOf(pod)
		b.node = nodeOf(sn, pod)
		target = b.pod
	case gvk.Group == "" && gvk.Kind == "Secret":
		secret, err := get[*corev1.Secret](sn, secrets, sa.Namespace, to.Name)
		if err != nil {
			return b, err
		}
		b.secret = refOf(secret)
		target = b.secret
	case gvk.Group == "" && gvk.Kind == "Node":
		node, err := get[*corev1.Node](sn, nodes, "", to.Name)
		if err != nil {
			return b, err
		}
		b.node = refOf(node)
		target = b.node
	default:
		return b, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk))
	}
	if to.UID != "" && to.UID != types.UID(target.UID) {
		return b, apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, to.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", to.UID))
	}
	return b, nil
}

// nodeOf names a pod's node, without its uid when the Node object is gone.
func nodeOf(sn *store.Snapshot, pod *corev1.Pod) *ref {
	if pod.Spec.NodeName == "" {
		return nil
	}
	if node, err := get[*corev1.Node](sn, nodes, "", pod.Spec.NodeName); err == nil {
		return refOf(node)
	}
	return &ref{Name: pod.Spec.NodeName}
}

// life returns how long the token really lives and, when that is longer than
// asked for, how long it was asked for.
func (s *Service) life(ctx context.Context, req *authenticationv1.TokenRequest, to binding) (life, warnAfter time.Duration) {
	limit := int64(s.maxLife / time.Second)
	if limit > 0 && *req.Spec.ExpirationSeconds > limit {
		warning.AddWarning(ctx, "", fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", *req.Spec.ExpirationSeconds, limit))
		*req.Spec.ExpirationSeconds = limit
	}
	life = time.Duration(*req.Spec.ExpirationSeconds) * time.Second
	own := len(s.audiences.Intersect(authenticator.Audiences(req.Spec.Audiences))) == len(req.Spec.Audiences)
	if to.pod == nil || life != projectedLife || !own {
		return life, 0
	}
	if s.exactLives {
		return life, 0
	}
	extended := extendedLife
	if limit > 0 {
		extended = min(extended, s.maxLife)
	}
	return extended, life
}

func get[T store.Object](sn *store.Snapshot, gr schema.GroupResource, namespace, name string) (T, error) {
	var none T
	item, err := sn.Get(store.Key{Resource: gr, Namespace: namespace, Name: name})
	if errors.Is(err, store.ErrNotFound) {
		return none, apierrors.NewNotFound(gr, name)
	}
	if err != nil {
		return none, err
	}
	obj, ok := item.Object.(T)
	if !ok {
		return none, fmt.Errorf("%s holds a %T", item.Key, item.Object)
	}
	return obj, nil
}

func sortedKeys(keys map[string]Key) []Key {
	out := make([]Key, 0, len(keys))
	for _, k := range keys {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b Key) int { return strings.Compare(a.KeyID, b.KeyID) })
	return out
}
