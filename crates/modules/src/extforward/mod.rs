//! mod_extforward: the client's address from a trusted proxy.

/// Variable of the environment: the address of the proxy whose word was taken.
pub const ACTUAL_FOR: &str = "_L_EXTFORWARD_ACTUAL_FOR";

/// Variable of the environment: what that proxy spoke, where it says that the client speaks another.
pub const ACTUAL_PROTO: &str = "_L_EXTFORWARD_ACTUAL_PROTO";

/// Variable of the environment: the host that proxy asked for, where it says that the client asked for
/// another.
pub const ACTUAL_HOST: &str = "_L_EXTFORWARD_ACTUAL_HOST";
