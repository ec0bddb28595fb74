// Package replicaset keeps as many pods of every ReplicaSet as it asks for. Its
// engine works for any kind that is a number, a selector and a template:
// ReplicationControllers run on it too.
package replicaset

import (
	appsv1 "k8s.io/api/apps/v1"

	"proa/internal/controllers"
)

// Controller reconciles ReplicaSets.
type Controller = Engine[*appsv1.ReplicaSet]

// New returns the ReplicaSet controller.
func New(c controllers.Config) *Controller {
	return NewEngine(c, Kind[*appsv1.ReplicaSet]{
		GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
		Name:             "replicaset-controller", CountsTerminating: true,
		View: func(rs *appsv1.ReplicaSet) *appsv1.ReplicaSet { return rs },
		WithStatus: func(rs *appsv1.ReplicaSet, status appsv1.ReplicaSetStatus) *appsv1.ReplicaSet {
			rs = rs.DeepCopy()
			rs.Status = status
			return rs
		},
	})
}
