package volume

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/ephemeral"

	"proa/internal/client"
	"proa/internal/controllers"
)

const (
	claimFinalizer  = "kubernetes.io/pvc-protection"
	volumeFinalizer = "kubernetes.io/pv-protection"
)

var everything = labels.Everything()

// Protection keeps claims that pods use, or volumes that are bound, from
// disappearing: it holds a finalizer on each.
type Protection struct {
	loop   *controllers.Loop
	claim  *client.Informer[*corev1.PersistentVolumeClaim]
	volume *client.Informer[*corev1.PersistentVolume]
	pods   *client.Informer[*corev1.Pod]
}

// NewClaimProtection returns what protects claims.
func NewClaimProtection(c controllers.Config) *Protection {
	p := &Protection{
		claim: client.Shared[*corev1.PersistentVolumeClaim](c.Cache),
		pods:  client.Shared[*corev1.Pod](c.Cache),
	}
	p.loop = controllers.NewLoop("pvcprotection", c, p.syncClaim)
	p.pods.AddIndex(byPodUsed, usedClaims)
	p.claim.OnChange(func(_, claim *corev1.PersistentVolumeClaim) {
		if claim != nil && unsettled(claim, claimFinalizer) {
			p.loop.EnqueueObject(claim)
		}
	})
	p.pods.OnChange(func(old, pod *corev1.Pod) {
		if old != nil && (pod == nil || pod.UID != old.UID || shutDown(pod) && !shutDown(old)) {
			p.enqueueClaims(old)
		}
	})
	return p
}

// NewVolumeProtection returns what protects volumes.
func NewVolumeProtection(c controllers.Config) *Protection {
	p := &Protection{volume: client.Shared[*corev1.PersistentVolume](c.Cache)}
	p.loop = controllers.NewLoop("pvprotection", c, p.syncVolume)
	p.volume.OnChange(func(_, volume *corev1.PersistentVolume) {
		if volume != nil && unsettled(volume, volumeFinalizer) {
			p.loop.EnqueueObject(volume)
		}
	})
	return p
}

// Run works until ctx ends. The cache must have synced.
func (p *Protection) Run(ctx context.Context) error { return p.loop.Run(ctx) }

// unsettled says whether a finalizer is missing or about to be due.
func unsettled(obj metav1.Object, finalizer string) bool {
	return (obj.GetDeletionTimestamp() != nil) == slices.Contains(obj.GetFinalizers(), finalizer)
}

func (p *Protection) enqueueClaims(pod *corev1.Pod) {
	for i := range pod.Spec.Volumes {
		if name := claimName(pod, &pod.Spec.Volumes[i]); name != "" {
			p.loop.Enqueue(controllers.Key{Namespace: pod.Namespace, Name: name})
		}
	}
}

// claimName is the claim that a pod's volume uses, "" when it uses none.
func claimName(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v)
	}
	return ""
}

func usedClaims(pod *corev1.Pod) []string {
	var keys []string
	for i := range pod.Spec.Volumes {
		if name := claimName(pod, &pod.Spec.Volumes[i]); name != "" {
			keys = append(keys, pod.Namespace+"/"+name)
		}
	}
	return keys
}

func (p *Protection) syncClaim(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	claim, ok := p.claim.Cached(key.Namespace, key.Name)
	if !ok || !unsettled(claim, claimFinalizer) {
		return controllers.Result{}, nil
	}
	want := claim.DeepCopy()
	if claim.DeletionTimestamp == nil {
		want.Finalizers = append(want.Finalizers, claimFinalizer)
	} else {
		used, err := p.used(ctx, claim)
		if err != nil || used {
			return controllers.Result{}, err
		}
		want.Finalizers = slices.DeleteFunc(want.Finalizers, func(f string) bool { return f == claimFinalizer })
	}
	_, err := p.claim.Update(ctx, want)
	return controllers.Result{}, ignoreStale(err)
}

// used says whether a scheduled pod uses the claim. The informer answers yes;
// only the API itself may answer no, because data is lost after it.
func (p *Protection) used(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	uses := func(pod *corev1.Pod) bool { return uses(pod, claim) }
	if slices.ContainsFunc(p.pods.ByIndex(byPodUsed, claimKey(claim)), uses) {
		return true, nil
	}
	pods, err := p.pods.List(ctx, claim.Namespace, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(pods, uses), nil
}

// uses says whether a pod may have a volume of the claim mounted. The claim of an
// ephemeral volume may go before its pod, which waits for it when it is deleted in
// the foreground.
func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if pod.Spec.NodeName == "" {
		return false
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if claimName(pod, v) == claim.Name && (v.Ephemeral == nil || !shutDown(pod) && ephemeral.VolumeIsForPod(pod, claim) == nil) {
			return true
		}
	}
	return false
}

// shutDown says whether the node is done with a pod, or was not asked.
func shutDown(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

func (p *Protection) syncVolume(ctx context.Context, key controllers.Key) (controllers.Result, error) {
	volume, ok := p.volume.Cached("", key.Name)
	if !ok || !unsettled(volume, volumeFinalizer) {
		return controllers.Result{}, nil
	}
	want := volume.DeepCopy()
	switch {
	case volume.DeletionTimestamp == nil:
		want.Finalizers = append(want.Finalizers, volumeFinalizer)
	case volume.Status.Phase == corev1.VolumeBound:
		return controllers.Result{}, nil
	default:
		want.Finalizers = slices.DeleteFunc(want.Finalizers, func(f string) bool { return f == volumeFinalizer })
	}
	_, err := p.volume.Update(ctx, want)
	return controllers.Result{}, ignoreStale(err)
}
