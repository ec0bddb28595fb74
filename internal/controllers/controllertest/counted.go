package controllertest

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"proa/internal/client"
)

// counted is the API that controllers get: it counts writes and lets them fail.
type counted struct {
	client.API
	world *World
}

func (c *counted) write(verb string, ref client.Ref, call func() (client.Object, error)) (client.Object, error) {
	w := c.world
	w.mu.Lock()
	var before, after error
	if w.fail != nil {
		before, after = w.fail(w.total)
	}
	w.total++
	w.mu.Unlock()
	if before != nil {
		return nil, before
	}
	obj, err := call()
	if err != nil {
		return nil, err
	}
	what := verb + " " + ref.Resource.Resource
	if ref.Subresource != "" {
		what += "/" + ref.Subresource
	}
	w.mu.Lock()
	w.writes[what]++
	w.mu.Unlock()
	return obj, after
}

func (c *counted) Create(ctx context.Context, ref client.Ref, obj client.Object, opts metav1.CreateOptions) (client.Object, error) {
	return c.write("create", ref, func() (client.Object, error) { return c.API.Create(ctx, ref, obj, opts) })
}

func (c *counted) Update(ctx context.Context, ref client.Ref, obj client.Object, opts metav1.UpdateOptions) (client.Object, error) {
	return c.write("update", ref, func() (client.Object, error) { return c.API.Update(ctx, ref, obj, opts) })
}

func (c *counted) Patch(ctx context.Context, ref client.Ref, pt types.PatchType, data []byte, opts metav1.PatchOptions) (client.Object, error) {
	return c.write("patch", ref, func() (client.Object, error) { return c.API.Patch(ctx, ref, pt, data, opts) })
}

func (c *counted) Delete(ctx context.Context, ref client.Ref, opts metav1.DeleteOptions) (client.Object, error) {
	return c.write("delete", ref, func() (client.Object, error) { return c.API.Delete(ctx, ref, opts) })
}
