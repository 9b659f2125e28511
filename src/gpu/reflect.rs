//! What composed WGSL says of itself: bindings, parameters, workgroup size.
//!
//! Bind-group layouts are built from this, calls are checked against it, and tests hold it against
//! the Rust side. No layout is written by hand.

use naga::{AddressSpace, ArraySize, ScalarKind, StorageAccess, TypeInner};

/// How a kernel uses a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Read and written.
    ReadWrite,
}

/// One tensor of group 0.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The variable's name; the name at the call.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Read or written.
    pub access: Access,
}

/// A module's interface.
#[derive(Clone, Debug)]
pub struct Reflection {
    /// Tensors of group 0, by number.
    pub bindings: Vec<Binding>,
    /// Field name and type of the uniform at group 1, binding 0; empty where there is none.
    pub params: Vec<(String, String)>,
    /// Bytes of that uniform.
    pub params_bytes: u32,
    /// Names of the `override` constants.
    pub overrides: Vec<String>,
    /// Bytes of workgroup memory, without arrays sized by an override.
    pub workgroup_bytes: u32,
}

/// Parses `source` and reads the interface of entry point `entry`.
///
/// # Errors
/// A message with line and column of the composed text, or what breaks the house rules: another
/// entry point, a binding outside of groups 0 and 1, a parameter that is not a scalar.
pub fn reflect(source: &str, entry: &str) -> Result<Reflection, ReflectError> {
    let module = naga::front::wgsl::parse_str(source).map_err(|e| {
        let line = e.location(source).map(|l| l.line_number as usize);
        ReflectError {
            line,
            message: e.emit_to_string(source),
        }
    })?;
    let broken = |message: String| ReflectError {
        line: None,
        message,
    };
    match module.entry_points.as_slice() {
        [one] if one.name == entry => {}
        others => {
            let names: Vec<&str> = others.iter().map(|e| e.name.as_str()).collect();
            return Err(broken(format!(
                "entry points are {names:?}, expected {entry} alone"
            )));
        }
    }
    let mut reflection = Reflection {
        bindings: Vec::new(),
        params: Vec::new(),
        params_bytes: 0,
        overrides: module
            .overrides
            .iter()
            .filter_map(|(_, o)| o.name.clone())
            .collect(),
        workgroup_bytes: 0,
    };
    for (_, global) in module.global_variables.iter() {
        let name = global.name.clone().unwrap_or_default();
        let inner = &module.types[global.ty].inner;
        match (global.space, &global.binding) {
            (AddressSpace::Storage { access }, Some(at)) if at.group == 0 => {
                let access = if access.contains(StorageAccess::STORE) {
                    Access::ReadWrite
                } else {
                    Access::Read
                };
                reflection.bindings.push(Binding {
                    name,
                    index: at.binding,
                    access,
                });
            }
            (AddressSpace::Uniform, Some(at)) if at.group == 1 && at.binding == 0 => {
                let TypeInner::Struct { members, span } = inner else {
                    return Err(broken(format!("{name} is not a struct")));
                };
                reflection.params_bytes = *span;
                for member in members {
                    let kind = match module.types[member.ty].inner {
                        TypeInner::Scalar(s) if s.width == 4 && s.kind == ScalarKind::Uint => "u32",
                        TypeInner::Scalar(s) if s.width == 4 && s.kind == ScalarKind::Sint => "i32",
                        TypeInner::Scalar(s) if s.width == 4 && s.kind == ScalarKind::Float => {
                            "f32"
                        }
                        _ => {
                            return Err(broken(format!(
                                "{name}: a parameter is a u32, i32 or f32"
                            )));
                        }
                    };
                    reflection
                        .params
                        .push((member.name.clone().unwrap_or_default(), kind.to_owned()));
                }
            }
            (AddressSpace::WorkGroup, None) => {
                let sized_by_override = matches!(
                    inner,
                    TypeInner::Array {
                        size: ArraySize::Pending(_),
                        ..
                    }
                );
                if !sized_by_override {
                    reflection.workgroup_bytes += inner.size(module.to_ctx());
                }
            }
            (_, Some(at)) => {
                return Err(broken(format!(
                    "{name} is at group {} binding {}: tensors are in group 0, params at 1,0",
                    at.group, at.binding
                )));
            }
            _ => {}
        }
    }
    reflection.bindings.sort_by_key(|b| b.index);
    Ok(reflection)
}

/// Why a module could not be read.
#[derive(Debug)]
pub struct ReflectError {
    /// Line of the composed text, where there is one.
    pub line: Option<usize>,
    /// The compiler's message.
    pub message: String,
}
