package controlplane

import (
	"runtime"

	"k8s.io/apimachinery/pkg/version"

	"proa/internal/apis"
)

// Commit and BuildDate are stamped at link time.
var Commit, BuildDate string

// KubernetesVersion is what /version says: the Kubernetes that the API equals.
func KubernetesVersion() version.Info {
	return version.Info{
		Major: "1", Minor: "37", EmulationMajor: "1", EmulationMinor: "37", MinCompatibilityMajor: "1", MinCompatibilityMinor: "36",
		GitVersion: apis.KubernetesVersion + "+proa", GitCommit: Commit, GitTreeState: "clean",
		BuildDate: BuildDate, GoVersion: runtime.Version(), Compiler: "gc", Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
}
