/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may load a network: a board that takes signatures of HMAC-SHA-256 (RFC 2104, FIPS 180-4) by one secret key. Whoever reads the
 * key out of the board can sign; where that matters, call your library's check of a public signature (Ed25519, ECDSA) instead.
 */
#include <string.h>

#include "microc_slot.h"

#define BLOCK 64u
#define DIGEST 32u

/* The key of the example. Make your own of 32 random bytes, and keep it out of your repository. */
static const uint8_t key[DIGEST] = "the key of the example, not one";

struct sha256 {
    uint32_t state[8];
    uint8_t block[BLOCK];
    uint32_t size; /* bytes so far */
};

static const uint32_t constants[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u, 0xd807aa98u, 0x12835b01u,
    0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u, 0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu,
    0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau, 0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u,
    0x06ca6351u, 0x14292967u, 0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
    0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u, 0x19a4c116u, 0x1e376c08u,
    0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u, 0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u,
    0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u,
};

static uint32_t turned(uint32_t x, unsigned n)
{
    return x >> n | x << (32u - n);
}

static void take_block(struct sha256 *hash)
{
    uint32_t w[64], s[8], k;
    for (k = 0; k < 16u; k++) {
        const uint8_t *at = hash->block + 4u * k;
        w[k] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (k = 16; k < 64u; k++) {
        uint32_t a = turned(w[k - 15], 7) ^ turned(w[k - 15], 18) ^ w[k - 15] >> 3;
        uint32_t b = turned(w[k - 2], 17) ^ turned(w[k - 2], 19) ^ w[k - 2] >> 10;
        w[k] = w[k - 16] + a + w[k - 7] + b;
    }
    (void)memcpy(s, hash->state, sizeof s);
    for (k = 0; k < 64u; k++) {
        uint32_t a = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants[k] + w[k];
        uint32_t b = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        (void)memmove(s + 1, s, 7u * sizeof s[0]);
        s[4] += a;
        s[0] = a + b;
    }
    for (k = 0; k < 8u; k++) {
        hash->state[k] += s[k];
    }
}

static void begin(struct sha256 *hash)
{
    static const uint32_t initial[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au, 0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    (void)memcpy(hash->state, initial, sizeof initial);
    hash->size = 0;
}

static void take(struct sha256 *hash, const uint8_t *data, uint32_t size)
{
    uint32_t k;
    for (k = 0; k < size; k++) {
        hash->block[hash->size % BLOCK] = data[k];
        hash->size++;
        if (hash->size % BLOCK == 0u) {
            take_block(hash);
        }
    }
}

static void finish(struct sha256 *hash, uint8_t *digest)
{
    uint32_t bytes = hash->size, k;
    uint8_t length[8] = {0};
    const uint8_t one = 0x80, zero = 0;
    length[3] = (uint8_t)(bytes >> 29);
    for (k = 0; k < 4u; k++) {
        length[4 + k] = (uint8_t)((bytes << 3) >> (24u - 8u * k));
    }
    take(hash, &one, 1);
    while (hash->size % BLOCK != BLOCK - sizeof length) {
        take(hash, &zero, 1);
    }
    take(hash, length, sizeof length);
    for (k = 0; k < DIGEST; k++) {
        digest[k] = (uint8_t)(hash->state[k / 4u] >> (24u - 8u * (k % 4u)));
    }
}

/* The key in a block, every byte changed by `pad`. */
static void take_key(struct sha256 *hash, uint8_t pad)
{
    uint8_t block[BLOCK];
    uint32_t k;
    for (k = 0; k < BLOCK; k++) {
        block[k] = (uint8_t)((k < sizeof key ? key[k] : 0u) ^ pad);
    }
    take(hash, block, sizeof block);
}

int microc_slot_verify(const uint8_t *blob, uint32_t size, const uint8_t *signature, uint32_t signature_size)
{
    struct sha256 hash;
    uint8_t digest[DIGEST], different = 0;
    uint32_t k;
    if (signature_size != DIGEST) {
        return -1;
    }
    begin(&hash);
    take_key(&hash, 0x36);
    take(&hash, blob, size);
    finish(&hash, digest);
    begin(&hash);
    take_key(&hash, 0x5c);
    take(&hash, digest, sizeof digest);
    finish(&hash, digest);
    for (k = 0; k < DIGEST; k++) { /* all of them: how long it takes tells nothing */
        different = (uint8_t)(different | (digest[k] ^ signature[k]));
    }
    return different == 0u ? 0 : -1;
}
