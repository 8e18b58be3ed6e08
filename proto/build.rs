//! Compiles the schema without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(
        [
            "proto/leasehold/v1/leasehold.proto",
            "proto/leasehold/v1/peer.proto",
        ],
        ["proto"],
    )?;
    // For whoever goes through all methods.
    let described = std::path::PathBuf::from(std::env::var("OUT_DIR")?).join("leasehold.bin");
    std::fs::write(described, prost::Message::encode_to_vec(&files))?;
    tonic_prost_build::configure()
        .bytes(".leasehold.v1.RaftMessage")
        .compile_fds(files)?;
    Ok(())
}
