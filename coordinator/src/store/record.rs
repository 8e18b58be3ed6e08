//! The framing of every value in the engine: a version, a checksum over key and
//! payload, the payload. Knows nothing of what payloads mean.

/// The version of the framing and of the payloads in it.
pub(super) const VERSION: u8 = 1;
const HEADER: usize = 5;

/// Frames a payload that is kept under `key`.
pub(super) fn seal(key: &[u8], payload: &[&[u8]]) -> Vec<u8> {
    let length: usize = payload.iter().map(|part| part.len()).sum();
    let mut value = Vec::with_capacity(HEADER + length);
    value.push(VERSION);
    value.extend_from_slice(&[0; 4]);
    for part in payload {
        value.extend_from_slice(part);
    }
    let sum = checksum(key, &value[HEADER..]);
    value[1..HEADER].copy_from_slice(&sum.to_le_bytes());
    value
}

/// The payload of a value kept under `key`.
pub(super) fn unseal<'a>(key: &[u8], value: &'a [u8]) -> Result<&'a [u8], String> {
    let (Some(version), Some(sum), Some(payload)) =
        (value.first(), value.get(1..HEADER), value.get(HEADER..))
    else {
        return Err(format!("the value under {} is too short", name(key)));
    };
    if sum != checksum(key, payload).to_le_bytes() {
        return Err(format!(
            "the checksum of the value under {} is wrong",
            name(key)
        ));
    }
    if *version != VERSION {
        return Err(format!(
            "the value under {} has version {version}, which is unknown",
            name(key)
        ));
    }
    Ok(payload)
}

/// A key as people read it.
pub(super) fn name(key: &[u8]) -> String {
    match key {
        [0xff, rest @ ..] => String::from_utf8_lossy(rest).into_owned(),
        _ => match key.first_chunk::<8>() {
            Some(index) => format!("entry {}", u64::from_be_bytes(*index)),
            None => format!("{key:02x?}"),
        },
    }
}

fn checksum(key: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    // The key is part of it: a sound value under the wrong key is damage too.
    hasher.update(key);
    hasher.update(payload);
    hasher.finalize()
}
