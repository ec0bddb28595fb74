package apis

// KubernetesVersion is the release of Kubernetes that Proa behaves as.
const KubernetesVersion = "v1.37.2"
