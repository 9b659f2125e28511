//! The key-value part of a GGUF file, and getters that say which key is wrong.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::cursor::Cursor;
use super::write::GgufWriter;
use crate::error::{Error, Result};

/// Strings in one array. The largest vocabularies have a quarter of a million entries.
const MAX_STRINGS: u64 = 4 << 20;
/// Bytes in one string; chat templates are the longest there are.
const MAX_STRING_BYTES: u64 = 16 << 20;

/// One value as found in a file, reduced to what the getters distinguish.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    /// Any integer type.
    Integer(i128),
    /// `f32`, or `f64` narrowed.
    Float(f32),
    Bool(bool),
    String(String),
    Strings(Vec<String>),
    /// An array of any integer type whose values fit.
    I32s(Vec<i32>),
    /// An integer array that does not fit, kept by its first offending value.
    WideIntegers {
        idx: usize,
        value: i128,
    },
    /// An array of `f32`, or of `f64` narrowed.
    F32s(Vec<f32>),
    Bools(Vec<bool>),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a bool",
            Value::String(_) => "a string",
            Value::Strings(_) => "an array of strings",
            Value::I32s(_) | Value::WideIntegers { .. } => "an array of integers",
            Value::F32s(_) => "an array of floats",
            Value::Bools(_) => "an array of bools",
        }
    }
}

fn put_integer(file: GgufWriter, key: &str, value: i128) -> GgufWriter {
    if let Ok(value) = u32::try_from(value) {
        file.u32(key, value)
    } else if let Ok(value) = i32::try_from(value) {
        file.i32(key, value)
    } else if let Ok(value) = u64::try_from(value) {
        file.u64(key, value)
    } else {
        file.raw(key, 11, &(value as i64).to_le_bytes())
    }
}

/// Value type ids of the file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Integer { bytes: u32, signed: bool },
    Float { bytes: u32 },
    Bool,
    String,
    Array,
}

impl Type {
    fn from_id(id: u32) -> Option<Type> {
        let integer = |bytes, signed| Type::Integer { bytes, signed };
        Some(match id {
            0 => integer(1, false),
            1 => integer(1, true),
            2 => integer(2, false),
            3 => integer(2, true),
            4 => integer(4, false),
            5 => integer(4, true),
            6 => Type::Float { bytes: 4 },
            7 => Type::Bool,
            8 => Type::String,
            9 => Type::Array,
            10 => integer(8, false),
            11 => integer(8, true),
            12 => Type::Float { bytes: 8 },
            _ => return None,
        })
    }
}

/// All keys of a GGUF file. Each getter's error names the file and the key; each has an `opt_` form
/// for which a missing key is `None` and a value of another type is still an error.
#[derive(Debug, Clone)]
pub struct Metadata {
    path: PathBuf,
    values: BTreeMap<String, Value>,
}

macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident, $opt_name:ident -> $type:ty = $wanted:literal, $read:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`Error::Field`] naming the key if it is missing or holds something else.
        pub fn $name(&self, key: &str) -> Result<$type> {
            self.$opt_name(key)?.ok_or_else(|| {
                Error::field(&self.path, key, concat!("is missing, expected ", $wanted))
            })
        }

        #[doc = concat!("[`Metadata::", stringify!($name), "`], or `None` if the key is missing.")]
        ///
        /// # Errors
        /// [`Error::Field`] naming the key if it holds something else.
        pub fn $opt_name(&self, key: &str) -> Result<Option<$type>> {
            let Some(value) = self.values.get(key) else {
                return Ok(None);
            };
            let read: fn(&Value) -> Option<$type> = $read;
            read(value).map(Some).ok_or_else(|| self.wrong(key, value, $wanted))
        }
    )*};
}

impl Metadata {
    getters! {
        /// A string.
        string, opt_string -> &str = "a string", |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        };
        /// An integer of any width whose value fits.
        u32, opt_u32 -> u32 = "an integer from 0 to 4294967295", |value| match value {
            Value::Integer(value) => (*value).try_into().ok(),
            _ => None,
        };
        /// A float. May be non-finite: the meaning of the key decides what is allowed.
        f32, opt_f32 -> f32 = "a float", |value| match value {
            Value::Float(value) => Some(*value),
            _ => None,
        };
        /// A bool.
        bool, opt_bool -> bool = "a bool", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        };
        /// An array of strings.
        strings, opt_strings -> &[String] = "an array of strings", |value| match value {
            Value::Strings(values) => Some(values),
            _ => None,
        };
        /// An array of integers of any width whose values fit.
        i32s, opt_i32s -> &[i32] = "an array of integers from -2147483648 to 2147483647",
        |value| match value {
            Value::I32s(values) => Some(values),
            _ => None,
        };
        /// An array of floats.
        f32s, opt_f32s -> &[f32] = "an array of floats", |value| match value {
            Value::F32s(values) => Some(values),
            _ => None,
        };
        /// An array of bools.
        bools, opt_bools -> &[bool] = "an array of bools", |value| match value {
            Value::Bools(values) => Some(values),
            _ => None,
        };
    }

    /// The model's family, `general.architecture`: the prefix of the family's own keys.
    ///
    /// # Errors
    /// [`Error::Field`] if the key is missing or no string.
    pub fn architecture(&self) -> Result<&str> {
        self.string("general.architecture")
    }

    /// The file these keys come from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Whether the key is there, whatever its type.
    pub fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Adds all keys that `keep` wants to a file that is being written. Integers become the narrowest of
    /// u32, i32, u64 and i64 that holds them, whatever they were; the bytes of a normaliser stay bytes.
    pub fn copy_to(&self, mut file: GgufWriter, keep: impl Fn(&str) -> bool) -> GgufWriter {
        for (key, value) in self.values.iter().filter(|(key, _)| keep(key)) {
            file = match value {
                Value::Integer(value) => put_integer(file, key, *value),
                Value::Float(value) => file.f32(key, *value),
                Value::Bool(value) => file.bool(key, *value),
                Value::String(value) => file.string(key, value),
                Value::Strings(values) => file.strings(key, values),
                Value::I32s(values) if key.ends_with("precompiled_charsmap") => {
                    let bytes: Vec<u8> = values.iter().map(|v| *v as u8).collect();
                    file.array(key, 0, bytes.len(), &bytes)
                }
                Value::I32s(values) => file.i32s(key, values),
                Value::F32s(values) => file.f32s(key, values),
                Value::Bools(values) => {
                    let bytes: Vec<u8> = values.iter().map(|v| u8::from(*v)).collect();
                    file.array(key, 7, bytes.len(), &bytes)
                }
                // known of it is the first value that nobody can use
                Value::WideIntegers { .. } => file,
            };
        }
        file
    }

    fn wrong(&self, key: &str, value: &Value, wanted: &str) -> Error {
        let found = match value {
            Value::Integer(value) => format!("the integer {value}"),
            Value::WideIntegers { idx, value } => format!("{value} as element {idx}"),
            value => value.kind().to_owned(),
        };
        Error::field(&self.path, key, format!("is {found}, expected {wanted}"))
    }

    /// Reads `num_keys` records. The caller has checked that the file can hold as many.
    pub(super) fn read(cursor: &mut Cursor<'_>, num_keys: u64) -> Result<Metadata> {
        let mut values = BTreeMap::new();
        for idx in 0..num_keys {
            let key = cursor.string(format_args!("name of key {idx}"), u64::from(u16::MAX))?;
            if key.is_empty() {
                return Err(cursor.error(&format!("key {idx}"), "has an empty name"));
            }
            if values.contains_key(&key) {
                return Err(cursor.error(&key, "appears twice"));
            }
            let value = read_value(cursor, &key)?;
            values.insert(key, value);
        }
        Ok(Metadata {
            path: cursor.path().to_owned(),
            values,
        })
    }
}

fn read_value(cursor: &mut Cursor<'_>, key: &str) -> Result<Value> {
    let ty = read_type(cursor, key)?;
    Ok(match ty {
        Type::Integer { bytes, signed } => {
            Value::Integer(integer(cursor.take(u64::from(bytes), key)?, signed))
        }
        Type::Float { bytes } => Value::Float(float(cursor.take(u64::from(bytes), key)?)),
        Type::Bool => {
            let byte = cursor.take(1, key)?[0];
            Value::Bool(bool_from(byte).ok_or_else(|| not_a_bool(cursor, key, byte))?)
        }
        Type::String => Value::String(cursor.string(key, MAX_STRING_BYTES)?),
        Type::Array => read_array(cursor, key)?,
    })
}

fn read_array(cursor: &mut Cursor<'_>, key: &str) -> Result<Value> {
    let ty = read_type(cursor, key)?;
    let len = cursor.u64(key)?;
    // A string is at least its length field.
    let element_bytes = match ty {
        Type::Integer { bytes, .. } | Type::Float { bytes } => u64::from(bytes),
        Type::Bool => 1,
        Type::String => 8,
        Type::Array => return Err(cursor.error(key, "arrays of arrays are not allowed")),
    };
    cursor.expect_room(len, element_bytes, &format!("array of {len} elements"), key)?;
    match ty {
        Type::String => read_strings(cursor, key, len),
        Type::Bool => {
            let mut values = Vec::with_capacity(len as usize);
            for _ in 0..len {
                let byte = cursor.take(1, key)?[0];
                values.push(bool_from(byte).ok_or_else(|| not_a_bool(cursor, key, byte))?);
            }
            Ok(Value::Bools(values))
        }
        Type::Float { .. } => {
            let mut values = Vec::with_capacity(len as usize);
            for _ in 0..len {
                values.push(float(cursor.take(element_bytes, key)?));
            }
            Ok(Value::F32s(values))
        }
        Type::Integer { signed, .. } => {
            let mut values = Vec::with_capacity(len as usize);
            let mut wide = None;
            for idx in 0..len as usize {
                let value = integer(cursor.take(element_bytes, key)?, signed);
                match i32::try_from(value) {
                    Ok(value) => values.push(value),
                    Err(_) => wide = wide.or(Some((idx, value))),
                }
            }
            Ok(match wide {
                Some((idx, value)) => Value::WideIntegers { idx, value },
                None => Value::I32s(values),
            })
        }
        Type::Array => unreachable!("refused above"),
    }
}

fn read_strings(cursor: &mut Cursor<'_>, key: &str, len: u64) -> Result<Value> {
    if len > MAX_STRINGS {
        let problem = format!("array of {len} strings, at most {MAX_STRINGS} are allowed");
        return Err(cursor.error(key, &problem));
    }
    let mut values = Vec::new();
    for idx in 0..len {
        values.push(cursor.string(Element { key, idx }, MAX_STRING_BYTES)?);
    }
    Ok(Value::Strings(values))
}

fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<Type> {
    let id = cursor.u32(key)?;
    Type::from_id(id).ok_or_else(|| {
        let problem = format!("unknown value type {id}, known are 0 to 12");
        cursor.error(key, &problem)
    })
}

/// Names one element of an array, without formatting it unless it is wrong.
#[derive(Clone, Copy)]
struct Element<'a> {
    key: &'a str,
    idx: u64,
}

impl fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.key, self.idx)
    }
}

/// Little-endian, of 1 to 8 bytes.
fn integer(bytes: &[u8], signed: bool) -> i128 {
    let negative = signed && bytes[bytes.len() - 1] & 0x80 != 0;
    let mut extended = [if negative { 0xff } else { 0 }; 16];
    extended[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(extended)
}

fn float(bytes: &[u8]) -> f32 {
    match *bytes {
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32,
        _ => unreachable!("a float of {} bytes", bytes.len()),
    }
}

fn bool_from(byte: u8) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn not_a_bool(cursor: &Cursor<'_>, key: &str, byte: u8) -> Error {
    cursor.error(key, &format!("bool with value {byte}, expected 0 or 1"))
}
