package core

import corev1 "k8s.io/api/core/v1"

// IsExtended reports whether a name is that of an extended resource: one that
// device plugins or administrators add to nodes.
func IsExtended(name corev1.ResourceName) bool { return isExtended(name) }
