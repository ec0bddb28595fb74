package feature

import "k8s.io/component-base/featuregate"

// Upstream's feature gates in release 1.37, by stage. Alpha gates start off. A
// gate that became GA is locked on, and leaves the table three releases later:
// its name is unknown from then on.
const (
	alpha = `
	APIServerWebhookAuthenticationToken APIServingWithRoutine AtomicWriteVolumeUserFields CBORServingAndStorage
	ClientsAllowCBOR ClientsPreferCBOR CloudControllerManagerWatchBasedRoutesReconciliation
	CloudControllerManagerWebhook CompositePodGroup ConsistentListFromCacheSkipTimeoutFallback ContainerStopSignals
	ControllerManagerReleaseLeaderElectionLockOnExit CPUManagerPolicyAlphaOptions CRIListStreaming
	CrossNamespaceVolumeDataSource CSIVolumeHealth DefaultPodSysctls DRADerivedAttributes
	DRADeviceCompatibilityGroups DRAListTypeAttributes DRANodeAllocatableResources DRAOptionalNodeOperations
	DRAPartitionableDevicesType DRAResourcePoolStatus EmptyDirVolumeMode EventedPLEG EvictionRequestAPI
	GRPCContainerProbeTLS H2CContainerProbe ImageVolumeWithDigest InPlacePodVerticalScalingExclusiveCPUs
	InPlacePodVerticalScalingExclusiveMemory InPlacePodVerticalScalingMemoryBackedVolumes
	InPlacePodVerticalScalingSchedulerPreemption InterPodAffinityHostnameFastPath KubeletAllocatedPodsEndpoint
	KubeProxyNFTablesLocalhostNodePorts LoggingAlphaOptions MutablePVNodeAffinity NodeLifecycleConditions
	PodGroupPreemptionPolicy PodLogsQuerySplitStreams QOSReserved ReduceDefaultCrashLoopBackOffDecay
	RuntimeClassInImageCriApi SchedulerPreQueueingHints ShardedListAndWatch StatefulSetRecreateStrategy
	StorageVersionAPI TaintTolerationComparisonOperators TopologyAwareWorkloadScheduling
	TopologyManagerPolicyAlphaOptions UserNamespacesHostNetworkSupport VolumeBindMountOptions
	WindowsCPUAndMemoryAffinity WorkloadWithJob`

	// betaOff are beta gates that start off: those that need an API which is
	// itself off, and those that were turned off after trouble.
	betaOff = `
	CoordinatedLeaderElection DRAFractionalCapacityRange DRAWorkloadResourceClaims GenericWorkload
	LocalStorageCapacityIsolationFSQuotaMonitoring PodAndContainerStatsFromCRI PodLevelResourceManagers
	SchedulerAsyncAPICalls`

	beta = `
	AllowParsingUserUIDFromCertAuth AllowUnsafeMalformedObjectDeletion APIResponseCompression APIServerIdentity
	AtomicFIFO AuthorizePodWebsocketUpgradeCreatePermission ClearingNominatedNodeNameAfterBinding
	ClientsAllowCARotation ClientsAllowTLSCacheGC ComponentFlagz ComponentStatusz ConcurrentWatchObjectDecode
	ConstrainedImpersonation ContainerCheckpoint ContainerRestartRules ContextualLogging CPUManagerPolicyBetaOptions
	CRDObservedGenerationTracking DeclarativeValidationBeta DeploymentReplicaSetTerminatingReplicas
	DetectCacheInconsistency DRAConsumableCapacity DRADeviceBindingConditions DRAPartitionableDevices
	DRAResourceClaimGranularStatusAuthorization DRASchedulerFilterTimeout EnvFiles EtcdRangeStream
	ExcludeAdmissionWebhookVirtualResources ExtendWebSocketsToKubelet GracefulNodeShutdown
	GracefulNodeShutdownBasedOnPodPriority HPAGeneration HPAOptimizedSelectorStore HPAScaleToZero
	HugepageAwareEviction InOrderInformersBatchProcess InPlacePodLevelResourcesVerticalScaling
	KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages KubeletInUserNamespace KubeletSeparateDiskGC
	KubeletServiceAccountTokenForCredentialProviders ListFromCacheSnapshot LoggingBetaOptions
	ManifestBasedAdmissionControlConfig MatchLabelKeysInPodTopologySpread
	MatchLabelKeysInPodTopologySpreadSelectorMerge MaxUnavailableStatefulSet MemoryQoS
	MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs NativeHistograms NFTablesNetlink
	NodeControllerLeaseCircuitBreaker NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching
	PersistentVolumeClaimUnusedSinceTime PodDeletionCost PodLevelResources PodLevelResourcesFixDefaulting
	PodLevelResourcesFixKubeletQOSClass PodsAPI PodTopologyLabelsAdmission PortForwardWebsockets
	ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile RemoteRequestHeaderUID ResourceHealthStatus
	ResourceHealthStatusMessage RestartAllContainersOnContainerExits RotateKubeletServerCertificate
	SchedulerAsyncPreemption SchedulerPopFromBackoffQ ServiceAccountNodeAudienceRestriction
	SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet StaleControllerConsistencyHPA
	StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
	StatefulSetSemanticRevisionComparison StorageCapacityScoring StorageVersionHash StrictIPCIDRValidation
	StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics
	TokenRequestServiceAccountUIDValidation TopologyManagerPolicyBetaOptions TranslateStreamCloseWebsocketRequests
	UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO
	VolumeLimitScaling WatchList WatchListClient WatchListCompression WebhookRoundTripLoadBalancing
	WindowsGracefulNodeShutdown`

	stable = `
	CPUManagerPolicyOptions CRDValidationRatcheting CSIServiceAccountTokenSecrets CustomResourceFieldSelectors
	DeclarativeValidation DisableAllocatorDualWrite DRAAdminAccess DRAExtendedResource DRAPrioritizedList
	DRAResourceClaimDeviceStatus DynamicResourceAllocation ExecProbeTimeout ExternalServiceAccountTokenSigner
	HostnameOverride HPAConfigurableTolerance ImageMaximumGCAge ImageVolume InOrderInformers
	InPlacePodVerticalScaling InPlacePodVerticalScalingInitContainers JobManagedBy KubeletCgroupDriverFromCRI
	KubeletFineGrainedAuthz KubeletPodResourcesDynamicResources KubeletPodResourcesGet KubeletPSI KubeletTracing
	MatchLabelKeysInPodAffinity MultiCIDRServiceAllocator MutableCSINodeAllocatableCount NFTablesProxyMode
	NodeDeclaredFeatures NodeInclusionPolicyInPodTopologySpread NodeLogQuery NodeSwap PLEGOnDemandRelist
	PodObservedGenerationTracking PodReadyToStartContainersCondition PodSchedulingReadiness
	PreferSameTrafficDistribution ProcMountType RecoverVolumeExpansionFailure RecursiveReadOnlyMounts
	RelaxedEnvironmentVariableValidation RelaxedServiceNameValidation SELinuxChangePolicy
	SELinuxMountReadWriteOncePod SeparateTaintEvictionController ServiceAccountTokenJTI
	ServiceAccountTokenNodeBinding ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo
	SupplementalGroupsPolicy SystemdWatchdog TopologyManagerPolicyOptions UserNamespacesSupport
	VolumeAttributesClass WatchCacheInitializationPostStartHook WinDSR WinOverlay`

	// stableOpen are GA, yet may still be turned off.
	stableOpen = `
	AllowServiceExternalIPs ClusterTrustBundle ClusterTrustBundleProjection CustomCPUCFSQuotaPeriod
	DRADeviceTaintRules DRADeviceTaints InformerResourceVersion MutatingAdmissionPolicy PodCertificateRequest
	SELinuxMount StorageVersionMigrator`

	deprecatedOff = `
	AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests ChangeContainerStatusOnKubeletRestart KMSv1
	KubeletRegistrationGetOnExistsOnly WindowsHostNetwork`

	deprecatedOn = `
	KubeletPodResourcesListUseActivePods KubeProxyIPVS ServiceCIDRStatusFieldWiping StorageNamespaceIndex`

	// deprecatedGone are deprecated and locked off.
	deprecatedGone = `
	AllowOverwriteTerminationGracePeriodSeconds DeclarativeValidationTakeover GitRepoVolumeDriver
	SeparateCacheWatchRPC`

	// deprecatedKept are deprecated and locked on.
	deprecatedKept = `
	AggregatedDiscoveryRemoveBetaType DisableCPUQuotaWithExclusiveCPUs DisableNodeKubeProxyVersion`

	// bound are gates that Proa cannot turn: it always does what their default
	// says. Turning one on or off by name is refused.
	bound = `
	AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests AllowParsingUserUIDFromCertAuth
	AllowServiceExternalIPs APIResponseCompression APIServerWebhookAuthenticationToken
	AuthorizePodWebsocketUpgradeCreatePermission ChangeContainerStatusOnKubeletRestart
	ClearingNominatedNodeNameAfterBinding ClusterTrustBundle ConsistentListFromCacheSkipTimeoutFallback
	ContainerCheckpoint DeclarativeValidationBeta DeploymentReplicaSetTerminatingReplicas DRAFractionalCapacityRange
	DRAResourceClaimGranularStatusAuthorization DRASchedulerFilterTimeout EventedPLEG
	ExcludeAdmissionWebhookVirtualResources ExtendWebSocketsToKubelet HPAGeneration HugepageAwareEviction
	InPlacePodVerticalScalingMemoryBackedVolumes KMSv1 KubeletAllocatedPodsEndpoint
	KubeletRegistrationGetOnExistsOnly KubeProxyNFTablesLocalhostNodePorts
	LocalStorageCapacityIsolationFSQuotaMonitoring MatchLabelKeysInPodTopologySpread
	MatchLabelKeysInPodTopologySpreadSelectorMerge MemoryQoS MutablePodResourcesForSuspendedJobs
	MutablePVNodeAffinity MutableSchedulingDirectivesForSuspendedJobs MutatingAdmissionPolicy NativeHistograms
	NodeControllerLeaseCircuitBreaker NodeLifecycleConditions NominatedNodeNameForExpectation
	PersistentVolumeClaimUnusedSinceTime PodCertificateRequest PodDeletionCost PodLevelResourceManagers
	PodLevelResourcesFixDefaulting PodLevelResourcesFixKubeletQOSClass PodTopologyLabelsAdmission
	PortForwardWebsockets ReduceDefaultCrashLoopBackOffDecay ReloadKubeletClientCAFile
	ReloadKubeletServerCertificateFile RemoteRequestHeaderUID RestartAllContainersOnContainerExits
	RuntimeClassInImageCriApi SELinuxMount ServiceAccountNodeAudienceRestriction ServiceCIDRStatusFieldWiping
	StatefulSetRecreateStrategy StatefulSetSemanticRevisionComparison StorageCapacityScoring StorageVersionAPI StorageVersionHash
	StorageVersionMigrator StrictIPCIDRValidation StructuredAuthenticationConfigurationJWKSMetrics
	TaintTolerationComparisonOperators TokenRequestServiceAccountUIDValidation TranslateStreamCloseWebsocketRequests
	UnauthenticatedHTTP2DOSMitigation UserNamespacesHostNetworkSupport WatchListCompression`
)

// requires names the gates without which a gate cannot be on.
var requires = map[featuregate.Feature][]featuregate.Feature{
	"ClusterTrustBundleProjection":                   {"ClusterTrustBundle"},
	"CompositePodGroup":                              {"GenericWorkload", "TopologyAwareWorkloadScheduling"},
	"DRAAdminAccess":                                 {"DynamicResourceAllocation"},
	"DRAConsumableCapacity":                          {"DynamicResourceAllocation"},
	"DRADerivedAttributes":                           {"DynamicResourceAllocation"},
	"DRADeviceBindingConditions":                     {"DynamicResourceAllocation", "DRAResourceClaimDeviceStatus"},
	"DRADeviceCompatibilityGroups":                   {"DynamicResourceAllocation", "DRAPartitionableDevices"},
	"DRADeviceTaintRules":                            {"DRADeviceTaints"},
	"DRADeviceTaints":                                {"DynamicResourceAllocation"},
	"DRAExtendedResource":                            {"DynamicResourceAllocation"},
	"DRAFractionalCapacityRange":                     {"DRAConsumableCapacity"},
	"DRAListTypeAttributes":                          {"DynamicResourceAllocation"},
	"DRANodeAllocatableResources":                    {"DynamicResourceAllocation"},
	"DRAOptionalNodeOperations":                      {"DynamicResourceAllocation", "NodeDeclaredFeatures"},
	"DRAPartitionableDevices":                        {"DynamicResourceAllocation"},
	"DRAPartitionableDevicesType":                    {"DynamicResourceAllocation", "DRAPartitionableDevices", "DRAResourcePoolStatus"},
	"DRAPrioritizedList":                             {"DynamicResourceAllocation"},
	"DRAResourceClaimGranularStatusAuthorization":    {"DynamicResourceAllocation", "DRAResourceClaimDeviceStatus"},
	"DRAResourcePoolStatus":                          {"DynamicResourceAllocation"},
	"DRASchedulerFilterTimeout":                      {"DynamicResourceAllocation"},
	"DRAWorkloadResourceClaims":                      {"DynamicResourceAllocation", "GenericWorkload"},
	"DisableAllocatorDualWrite":                      {"MultiCIDRServiceAllocator"},
	"EventedPLEG":                                    {"PLEGOnDemandRelist"},
	"ExtendWebSocketsToKubelet":                      {"NodeDeclaredFeatures"},
	"GracefulNodeShutdownBasedOnPodPriority":         {"GracefulNodeShutdown"},
	"H2CContainerProbe":                              {"NodeDeclaredFeatures"},
	"ImageVolumeWithDigest":                          {"ImageVolume"},
	"InPlacePodLevelResourcesVerticalScaling":        {"InPlacePodVerticalScaling", "PodLevelResources", "NodeDeclaredFeatures"},
	"InPlacePodVerticalScalingExclusiveCPUs":         {"InPlacePodVerticalScaling"},
	"InPlacePodVerticalScalingExclusiveMemory":       {"InPlacePodVerticalScaling"},
	"InPlacePodVerticalScalingInitContainers":        {"InPlacePodVerticalScaling", "NodeDeclaredFeatures"},
	"InPlacePodVerticalScalingMemoryBackedVolumes":   {"InPlacePodVerticalScaling", "NodeDeclaredFeatures"},
	"InPlacePodVerticalScalingSchedulerPreemption":   {"InPlacePodVerticalScaling"},
	"KubeletAllocatedPodsEndpoint":                   {"InPlacePodVerticalScaling"},
	"MatchLabelKeysInPodTopologySpreadSelectorMerge": {"MatchLabelKeysInPodTopologySpread"},
	"PodGroupPreemptionPolicy":                       {"GenericWorkload"},
	"PodLevelResourceManagers":                       {"PodLevelResources"},
	"PodLevelResourcesFixDefaulting":                 {"PodLevelResources"},
	"PodLevelResourcesFixKubeletQOSClass":            {"PodLevelResources"},
	"ProcMountType":                                  {"UserNamespacesSupport"},
	"ResourceHealthStatus":                           {"DynamicResourceAllocation"},
	"ResourceHealthStatusMessage":                    {"ResourceHealthStatus"},
	"RestartAllContainersOnContainerExits":           {"ContainerRestartRules", "NodeDeclaredFeatures"},
	"ServiceAccountTokenNodeBinding":                 {"ServiceAccountTokenNodeBindingValidation"},
	"TopologyAwareWorkloadScheduling":                {"GenericWorkload"},
	"UserNamespacesHostNetworkSupport":               {"UserNamespacesSupport", "NodeDeclaredFeatures"},
	"WindowsGracefulNodeShutdown":                    {"GracefulNodeShutdown"},
	"WorkloadWithJob":                                {"GenericWorkload"},
	"DeclarativeValidationBeta":                      {"DeclarativeValidation"},
	"DeclarativeValidationTakeover":                  {"DeclarativeValidation"},
	"StorageVersionAPI":                              {"APIServerIdentity"},
	"UnknownVersionInteroperabilityProxy":            {"APIServerIdentity"},
	"NodeControllerLeaseCircuitBreaker":              {"AtomicFIFO"},
	"StaleControllerConsistencyDaemonSet":            {"AtomicFIFO"},
	"StaleControllerConsistencyHPA":                  {"AtomicFIFO"},
	"StaleControllerConsistencyJob":                  {"AtomicFIFO"},
	"StaleControllerConsistencyReplicaSet":           {"AtomicFIFO"},
	"StaleControllerConsistencyStatefulSet":          {"AtomicFIFO"},
}
