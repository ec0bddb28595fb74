// Package history keeps ControllerRevisions: the past pod templates of an
// object, numbered upwards, by which StatefulSets and DaemonSets tell old pods
// from new and kubectl rolls back.
package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"

	"proa/internal/client"
)

// HashLabel is on every revision and holds the hash of its data.
const HashLabel = "controller.kubernetes.io/hash"

const maxPrefix = 223 // of a revision's name, which leaves room for the hash

// TemplatePatch is the data of a revision: a patch that puts template back.
func TemplatePatch(template *corev1.PodTemplateSpec) ([]byte, error) {
	encoded, err := json.Marshal(template)
	if err != nil {
		return nil, fmt.Errorf("marshal template: %w", err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(encoded, &fields); err != nil {
		return nil, fmt.Errorf("unmarshal template: %w", err)
	}
	fields["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": fields}})
}

// Template reads the pod template out of a revision's data.
func Template(r *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	var patch struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data.Raw, &patch); err != nil {
		return nil, fmt.Errorf("revision %s: %w", r.Name, err)
	}
	return &patch.Spec.Template, nil
}

// New returns a revision of owner, named by the hash of its data.
func New(owner metav1.Object, ref *metav1.OwnerReference, labels map[string]string, data []byte, revision int64, collisions *int32) *appsv1.ControllerRevision {
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       owner.GetNamespace(),
			Labels:          maps.Clone(labels),
			Annotations:     maps.Clone(owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*ref},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: revision,
	}
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	hash := hashOf(data, collisions)
	r.Name = name(owner.GetName(), hash)
	r.Labels[HashLabel] = hash
	return r
}

func name(owner, hash string) string {
	return owner[:min(len(owner), maxPrefix)] + "-" + hash
}

func hashOf(data []byte, collisions *int32) string {
	h := fnv.New32()
	h.Write(data)
	if collisions != nil {
		h.Write([]byte(strconv.FormatInt(int64(*collisions), 10)))
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// Create creates r. Where another revision has its name, collisions grows until
// the name is free; one with r's own data is r, created before.
func Create(ctx context.Context, revisions *client.Informer[*appsv1.ControllerRevision], owner string, r *appsv1.ControllerRevision, collisions *int32) (*appsv1.ControllerRevision, error) {
	for {
		r := r.DeepCopy()
		r.Name = name(owner, hashOf(r.Data.Raw, collisions))
		data := r.Data.Raw
		created, err := revisions.Create(ctx, r)
		if !apierrors.IsAlreadyExists(err) {
			return created, err
		}
		existing, err := revisions.Get(ctx, r.Namespace, name(owner, hashOf(data, collisions)))
		if err != nil {
			return nil, err
		}
		if bytes.Equal(existing.Data.Raw, data) {
			return existing, nil
		}
		*collisions++
	}
}

// Sort orders revisions from the first to the latest.
func Sort(revisions []*appsv1.ControllerRevision) {
	slices.SortStableFunc(revisions, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

// Next is the number that a new revision gets.
func Next(revisions []*appsv1.ControllerRevision) int64 {
	var latest int64
	for _, r := range revisions {
		latest = max(latest, r.Revision)
	}
	return latest + 1
}

// Renumber makes an old revision the latest again.
func Renumber(ctx context.Context, revisions *client.Informer[*appsv1.ControllerRevision], r *appsv1.ControllerRevision, number int64) (*appsv1.ControllerRevision, error) {
	if r.Revision >= number {
		return r, nil
	}
	r = r.DeepCopy()
	r.Revision = number
	return revisions.Update(ctx, r)
}

// Truncate deletes the oldest of the revisions that are not live until limit of them are left.
func Truncate(ctx context.Context, informer *client.Informer[*appsv1.ControllerRevision], revisions []*appsv1.ControllerRevision, limit int32, live func(*appsv1.ControllerRevision) bool) error {
	old := slices.DeleteFunc(slices.Clone(revisions), live)
	Sort(old)
	for _, r := range old[:max(0, len(old)-int(limit))] {
		uid := r.UID
		_, err := informer.Delete(ctx, r.Namespace, r.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete revision %s: %w", r.Name, err)
		}
	}
	return nil
}
