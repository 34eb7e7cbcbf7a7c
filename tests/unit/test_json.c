/* SPDX-License-Identifier: Apache-2.0 */
/* Strict JSON: what tests/bad/config does not reach. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "json.h"

static struct engram_error err;

static enum engram_status parse(struct json_source *src, const char *name,
				const char *text)
{
	engram_error_clear(&err);
	return json_source_parse(src, name, text, strlen(text), ENGRAM_EINVAL,
				 &err);
}

/* A view of a text that must parse. */
static struct json_view view(struct json_source *src, const char *text)
{
	struct json_view v;

	assert_int_equal(parse(src, "f", text), ENGRAM_OK);
	json_view_begin(&v, src->root, "", src, ENGRAM_EINVAL, &err);
	return v;
}

static void test_depth(void **state)
{
	char text[128] = "";
	struct json_source src;

	(void)state;
	memset(text, '[', 32);
	memset(text + 32, ']', 32);
	assert_int_equal(parse(&src, NULL, text), ENGRAM_OK);
	json_source_free(&src);
	memset(text, '[', 33);
	memset(text + 33, ']', 33);
	assert_int_equal(parse(&src, NULL, text), ENGRAM_EINVAL);
	assert_string_equal(err.message,
			    "more than 32 nested arrays and objects");
}

static void test_message_faults(void **state)
{
	struct json_source src;

	(void)state;
	assert_int_equal(parse(&src, NULL, "{\"a\": 1, \"a\": 2}"),
			 ENGRAM_EINVAL);
	assert_string_equal(err.message, "not JSON: duplicate object key near "
					 "'\"a\"' at byte 12");
	assert_int_equal(parse(&src, NULL, "{} {}"), ENGRAM_EINVAL);
	assert_int_equal(parse(&src, NULL, ""), ENGRAM_EINVAL);
	assert_int_equal(parse(&src, NULL, "{\"a\": \"\xc3\"}"), ENGRAM_EINVAL);
	assert_null(src.root);
}

static void test_lines(void **state)
{
	static const char text[] = "{\n"
				   "\"a.b\": {\"c\": \"}\\\"]\"},\n"
				   "\"list\": [1, [2, {\"x\": true}],\n"
				   "  {\"deep\":\n"
				   "    {\"key\": null}}],\n"
				   "\"a\": {\n"
				   "\"b\": {\"d\": 1}}\n"
				   "}";
	struct json_source src;

	(void)state;
	assert_int_equal(parse(&src, "f", text), ENGRAM_OK);
	assert_int_equal(json_source_line(&src, ""), 1);
	assert_int_equal(json_source_line(&src, "a.b.c"), 2);
	assert_int_equal(json_source_line(&src, "a.b.d"), 7);
	assert_int_equal(json_source_line(&src, "list[0]"), 3);
	assert_int_equal(json_source_line(&src, "list[1][1].x"), 3);
	assert_int_equal(json_source_line(&src, "list[2]"), 4);
	assert_int_equal(json_source_line(&src, "list[2].deep.key"), 5);
	assert_int_equal(json_source_line(&src, "list[3]"), 0);
	assert_int_equal(json_source_line(&src, "lis"), 0);
	assert_int_equal(json_source_line(&src, "nothing"), 0);
	json_source_free(&src);
}

static void test_first_fault_sticks(void **state)
{
	struct json_source src;
	struct json_view v = view(&src, "{\"n\": 5,\n\"s\": 1, \"z\": 2}");

	(void)state;
	assert_int_equal(json_view_int(&v, "n", 6, 9, 7), 7);
	assert_string_equal(json_view_string(&v, "s", "dflt"), "dflt");
	assert_int_equal(json_view_end(&v), ENGRAM_EINVAL);
	assert_string_equal(err.message, "f:1: n: must be 6..9, not 5");
	assert_string_equal(err.path, "n");
	json_source_free(&src);
}

static void test_defaults(void **state)
{
	static const char *const words[] = {"one", "two", NULL};
	struct json_source src;
	struct json_view v = view(&src, "{}");

	(void)state;
	assert_string_equal(json_view_string(&v, "a", "x"), "x");
	assert_null(json_view_string(&v, "a", NULL));
	assert_int_equal(json_view_int(&v, "b", 1, 2, -7), -7);
	assert_true(json_view_bool(&v, "c", true));
	assert_int_equal(json_view_enum(&v, "d", words, 1), 1);
	assert_int_equal(json_view_bytes(&v, "e", 1, 2, 99), 99);
	assert_true(json_view_real(&v, "f", 0, 1, 0.25) == 0.25);
	assert_null(json_view_array(&v, "g", 1, 2));
	assert_null(json_view_object(&v, "h"));
	assert_null(json_view_any(&v, "i"));
	assert_false(json_view_has(&v, "a"));
	assert_int_equal(json_view_end(&v), ENGRAM_OK);
	json_source_free(&src);
}

static uint64_t bytes_of(const char *value, enum engram_status *status)
{
	struct json_source src;
	char text[64];
	struct json_view v;
	uint64_t bytes;

	snprintf(text, sizeof(text), "{\"b\": %s}", value);
	v = view(&src, text);
	bytes = json_view_bytes(&v, "b", 0, UINT64_MAX, 1);
	*status = json_view_end(&v);
	json_source_free(&src);
	return bytes;
}

static void test_bytes(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {{"0", 0},
		    {"\"17\"", 17},
		    {"\"3B\"", 3},
		    {"\"64KiB\"", 65536},
		    {"\"4MiB\"", 4 << 20},
		    {"\"2TiB\"", UINT64_C(2) << 40},
		    {"\"16777215TiB\"", UINT64_C(16777215) << 40}};
	static const char *const bad[] = {"-1",
					  "1.5",
					  "\"\"",
					  "\"-1\"",
					  "\" 1\"",
					  "\"1 MiB\"",
					  "\"1kib\"",
					  "\"0x10\"",
					  "\"16777216TiB\"",
					  "null",
					  "\"99999999999999999999\""};
	enum engram_status status;

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_true(bytes_of(good[i].text, &status) == good[i].bytes);
		assert_int_equal(status, ENGRAM_OK);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		bytes_of(bad[i], &status);
		assert_int_equal(status, ENGRAM_EINVAL);
		assert_string_equal(err.message,
				    "f:1: b: must be a size such as 65536, "
				    "\"64KiB\", \"4MiB\" or \"1GiB\"");
	}
}

static void test_no_nul(void **state)
{
	struct json_source src;
	struct json_view v;

	(void)state;
	/* jansson refuses \u0000 unless told otherwise; so do we. */
	assert_int_equal(parse(&src, NULL, "{\"s\": \"a\\u0000b\"}"),
			 ENGRAM_EINVAL);
	v = view(&src, "{\"s\": \"a\"}");
	assert_string_equal(json_view_string(&v, "s", NULL), "a");
	json_source_free(&src);
}

static void test_nearest(void **state)
{
	static const char *const words[] = {"tables", "instance", "log", NULL};
	char long_word[200];

	(void)state;
	assert_string_equal(json_nearest("tabels", words), "tables");
	assert_string_equal(json_nearest("Instance", words), "instance");
	assert_string_equal(json_nearest("lgo", words), "log");
	assert_null(json_nearest("checkpoint", words));
	assert_null(json_nearest("", words + 3));
	memset(long_word, 'a', sizeof(long_word) - 1);
	long_word[sizeof(long_word) - 1] = '\0';
	assert_null(json_nearest(long_word, words));
}

/* A FIFO, a directory and a file that is too long are refused, not read. */
static void test_files(void **state)
{
	char dir[] = "/tmp/engram-json-XXXXXX", path[64];
	struct json_source src;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/f", dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(
		json_source_read(&src, path, 100, ENGRAM_ECONFIG, &err),
		ENGRAM_ECONFIG);
	assert_non_null(strstr(err.message, "not a regular file"));
	assert_string_equal(err.path, path);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(json_source_read(&src, dir, 100, ENGRAM_ECONFIG, &err),
			 ENGRAM_ECONFIG);
	assert_int_equal(
		json_source_read(&src, path, 100, ENGRAM_ECONFIG, &err),
		ENGRAM_ENOTFOUND);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fprintf(f, "%101s", "{}");
	fclose(f);
	assert_int_equal(
		json_source_read(&src, path, 100, ENGRAM_ECONFIG, &err),
		ENGRAM_ECONFIG);
	assert_non_null(strstr(err.message, "101 bytes, at most 100"));
	assert_int_equal(
		json_source_read(&src, path, 101, ENGRAM_ECONFIG, &err),
		ENGRAM_OK);
	json_source_free(&src);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_depth),
		cmocka_unit_test(test_message_faults),
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_first_fault_sticks),
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_no_nul),
		cmocka_unit_test(test_nearest),
		cmocka_unit_test(test_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
