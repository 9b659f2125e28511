//! What a kernel is made of: parts of WGSL, a parameter block, and the choices that make a variant.
//!
//! A kernel is composed by concatenating parts. Choosing an algorithm or a type is choosing another
//! part that defines the same names; a number is an `override`. Nothing is preprocessed.

use std::borrow::Cow;
use std::fmt;

/// A piece of WGSL, named by its path under `shaders/`.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The path under `shaders/`.
    pub name: &'static str,
    /// Its text.
    pub source: &'static str,
    /// Whether it uses subgroup operations, which the web asks to be enabled by name.
    pub subgroups: bool,
    /// Whether it uses 64-bit integers, which only native targets can have.
    pub int64: bool,
    /// Whether it uses cooperative matrices and f16, which are enabled by name; only Vulkan and Metal
    /// have them.
    pub coop: bool,
}

impl PartialEq for Part {
    fn eq(&self, other: &Part) -> bool {
        self.name == other.name
    }
}
impl Eq for Part {}
impl std::hash::Hash for Part {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// A [`Part`] from a file under `shaders/`, embedded into the program.
#[macro_export]
macro_rules! wgsl {
    ($name:literal) => {
        $crate::wgsl!(@ $name, false, false, false)
    };
    ($name:literal, subgroups: true) => {
        $crate::wgsl!(@ $name, true, false, false)
    };
    ($name:literal, int64: true) => {
        $crate::wgsl!(@ $name, false, true, false)
    };
    ($name:literal, coop: true) => {
        $crate::wgsl!(@ $name, true, false, true) // matrices belong to subgroups
    };
    (@ $name:literal, $subgroups:literal, $int64:literal, $coop:literal) => {
        $crate::gpu::Part {
            name: $name,
            source: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $name)),
            subgroups: $subgroups,
            int64: $int64,
            coop: $coop,
        }
    };
}

/// A kernel's parameter block. Implemented by [`params!`](crate::params), which also tells the
/// fields, so that tests can hold them against the WGSL.
pub trait Params: bytemuck::NoUninit {
    /// Field name and WGSL type, in order.
    const FIELDS: &'static [(&'static str, &'static str)];
}

/// Declares a kernel's parameter block: fields of `u32`, `i32` or `f32`, laid out as in WGSL.
#[macro_export]
macro_rules! params {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident : $kind:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name { $($(#[$field_meta])* pub $field: $kind),+ }
        impl $crate::gpu::Params for $name {
            const FIELDS: &'static [(&'static str, &'static str)] = &[$((stringify!($field), stringify!($kind))),+];
        }
    };
}

/// A kernel: its name is the entry point, the pipeline's label and the row in every report.
pub struct Kernel {
    /// Entry point and file stem.
    pub name: &'static str,
    /// The parts every variant has.
    pub parts: &'static [Part],
    /// Field name and WGSL type of its `Params`.
    pub params: &'static [(&'static str, &'static str)],
}

impl Kernel {
    /// A kernel with the parameter block `P`.
    pub const fn new<P: Params>(name: &'static str, parts: &'static [Part]) -> Kernel {
        Kernel {
            name,
            parts,
            params: P::FIELDS,
        }
    }
}

const MAX_PARTS: usize = 16;
const MAX_OVERRIDES: usize = 6;

/// Where composed WGSL will be compiled: browsers want extensions enabled by name, naga refuses that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// naga, natively.
    Native,
    /// A browser's compiler.
    Web,
}

/// A kernel with its parts chosen and its numbers set: the key of a pipeline. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Variant {
    /// The kernel.
    pub kernel: &'static Kernel,
    parts: [Option<&'static Part>; MAX_PARTS],
    overrides: [Option<(&'static str, u32)>; MAX_OVERRIDES],
}

impl Variant {
    /// The kernel with its fixed parts alone.
    pub fn new(kernel: &'static Kernel) -> Variant {
        Variant {
            kernel,
            parts: [None; MAX_PARTS],
            overrides: [None; MAX_OVERRIDES],
        }
    }

    /// With one more part, placed before the kernel's own.
    ///
    /// # Panics
    /// When there are too many: raise `MAX_PARTS`.
    #[must_use]
    pub fn part(mut self, part: &'static Part) -> Variant {
        let slot = self
            .parts
            .iter_mut()
            .find(|p| p.is_none())
            .expect("at most MAX_PARTS chosen parts");
        *slot = Some(part);
        self
    }

    /// With `override name` set to `value`.
    ///
    /// # Panics
    /// When there are too many: raise `MAX_OVERRIDES`.
    #[must_use]
    pub fn set(mut self, name: &'static str, value: u32) -> Variant {
        let slot = self
            .overrides
            .iter_mut()
            .find(|o| o.is_none())
            .expect("at most MAX_OVERRIDES overrides");
        *slot = Some((name, value));
        self
    }

    /// The chosen parts.
    pub fn chosen(&self) -> impl Iterator<Item = &'static Part> + '_ {
        self.parts.iter().flatten().copied()
    }

    /// The chosen parts, then the kernel's own: the order in which they are concatenated.
    pub fn all_parts(&self) -> impl Iterator<Item = &'static Part> + '_ {
        self.chosen().chain(self.kernel.parts)
    }

    /// The overrides that are set.
    pub fn overrides(&self) -> impl Iterator<Item = (&'static str, u32)> + '_ {
        self.overrides.iter().flatten().copied()
    }

    /// The WGSL text: `enable` directives where the target wants them, then the parts.
    pub fn compose(&self, target: Target) -> String {
        self.compose_of(target, |part| Cow::Borrowed(part.source))
    }

    /// The same of other texts for the parts, each of as many lines as the part has.
    pub fn compose_of(
        &self,
        target: Target,
        source: impl Fn(&Part) -> Cow<'static, str>,
    ) -> String {
        let mut text = String::new();
        for extension in self.extensions(target) {
            text.push_str(&format!("enable {extension};\n"));
        }
        for part in self.all_parts() {
            text.push_str(&source(part));
            text.push('\n');
        }
        text
    }

    /// The part and line that hold line `line` (from 1) of the text composed for `target`.
    pub fn locate(&self, target: Target, line: usize) -> (&'static str, usize) {
        let mut first = 1 + self.extensions(target).count();
        for part in self.all_parts() {
            let lines = part.source.matches('\n').count() + 1;
            if line < first + lines {
                return (part.name, line + 1 - first.min(line));
            }
            first += lines;
        }
        (self.kernel.name, line)
    }

    /// Whether any part uses cooperative matrices.
    pub fn uses_coop(&self) -> bool {
        self.all_parts().any(|p| p.coop)
    }

    /// The extensions that `target` wants to be enabled by name.
    fn extensions(&self, target: Target) -> impl Iterator<Item = &'static str> {
        let subgroups = target == Target::Web && self.all_parts().any(|p| p.subgroups);
        let coop = self.uses_coop();
        let all = [
            (subgroups, "subgroups"),
            (coop, "f16"),
            (coop, "wgpu_cooperative_matrix"),
        ];
        all.into_iter()
            .filter_map(|(used, name)| used.then_some(name))
    }

    fn key(&self) -> VariantKey {
        (
            self.kernel.name,
            self.parts.map(|p| p.map(|p| p.name)),
            self.overrides,
        )
    }
}

/// Names of kernel and parts, and the overrides: what tells variants apart.
type VariantKey = (
    &'static str,
    [Option<&'static str>; MAX_PARTS],
    [Option<(&'static str, u32)>; MAX_OVERRIDES],
);

impl PartialEq for Variant {
    fn eq(&self, other: &Variant) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Variant {}
impl std::hash::Hash for Variant {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kernel.name)?;
        for part in self.chosen() {
            write!(f, "+{}", part.name.trim_end_matches(".wgsl"))?;
        }
        for (name, value) in self.overrides() {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}
impl fmt::Debug for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
