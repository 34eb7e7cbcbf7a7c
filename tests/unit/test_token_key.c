/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of tokens, and that libutf8proc folds as the reference does: what the
 * `tokenizers` library makes of every code point is a checksum here, for
 * machines without it.  See tests/token_map for the rules one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

#include "token_key.h"
#include "unicode_fold.h"

#define FOLDS UINT64_C(0xd10278a207b34c6a)

static void expect(const char *token, const char *want)
{
	struct token_key_room room = {0};
	const char *key;
	size_t len;

	assert_true(
		token_key(&room, token, token ? strlen(token) : 0, &key, &len));
	assert_int_equal(len, strlen(want));
	if (len)
		assert_memory_equal(key, want, len);
	token_key_room_free(&room);
}

static void test_keys(void **state)
{
	(void)state;
	expect(NULL, "");
	expect("", "");
	expect("\u0120The", "the");
	expect("\u00c3\u00a9", "e"); /* the two bytes of U+00E9 */
	expect("\u0120", " ");
	expect("\u010a\u0120", " ");
	expect("\u0120\u0120a\u010a\u010ab", "a b");
	expect("\u010b", "\v");			/* stripped, so the text */
	expect("\u00cc\u0123", "\u0301");	/* dropped, so the text */
	expect("\u00e4\u00bd", "\u00e4\u00bd"); /* partial: as spelt */
	expect("\u00ee\u0122\u0122", " ");	/* U+E000 */
	expect("<\uff5cEnd\u2581\uff5c>", "<|end\u2581|>"); /* not spelt */
	expect("a b", "a b");
	expect("\u00e9", "\u00e9"); /* one byte, and not UTF-8 */
	expect("A \ufffd", "A \ufffd");
}

/* Room grows from one token to the next, and one long one fits. */
static void test_room(void **state)
{
	static char token[3 * 5000 + 1];
	struct token_key_room room = {0};
	const char *key;
	size_t len;

	(void)state;
	for (size_t i = 0; i < 5000; i++)
		memcpy(token + 3 * i, "\ufdfa", 3); /* 18 characters each */
	for (size_t n = 0; n <= 5000; n += 1000) {
		assert_true(token_key(&room, token, 3 * n, &key, &len));
		assert_true(n ? len > 18 * n : !len);
	}
	token_key_room_free(&room);
}

static void test_every_code_point(void **unused)
{
	XXH64_state_t *state = XXH64_createState();

	(void)unused;
	assert_non_null(state);
	assert_int_equal(XXH64_reset(state, 0), XXH_OK);
	for (int32_t c = 0; c <= 0x10ffff; c++) {
		int32_t out[UNICODE_FOLD_MAX];
		size_t n;

		if (c >= 0xd800 && c <= 0xdfff)
			continue;
		n = unicode_fold(c, out);
		XXH64_update(state, &c, sizeof(c));
		XXH64_update(state, out, n * sizeof(out[0]));
	}
	assert_int_equal(XXH64_digest(state), FOLDS);
	XXH64_freeState(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_room),
		cmocka_unit_test(test_every_code_point),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
