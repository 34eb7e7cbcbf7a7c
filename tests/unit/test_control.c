/* SPDX-License-Identifier: Apache-2.0 */
/* Who owns an instance's name, and what its clients see of that. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "engram_control.h"
#include "segment_fixture.h"

static char instance[64], path[256];
static struct engram_error err;

/* A child that owns the page and waits to be killed. */
static pid_t start_owner(void)
{
	struct engram_backing backing = fixture_shm();
	struct engram_control_owner *o;
	int ready[2];
	char c = 0;
	pid_t pid;

	CHECK(!pipe(ready));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		close(ready[0]);
		if (engram_control_own(&backing, instance, &o, NULL))
			_exit(1);
		engram_control_store64(
			&engram_control_owner_page(o)->tables[0].generation, 7);
		if (write(ready[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	CHECK(read(ready[0], &c, 1) == 1 && c == 'x');
	close(ready[0]);
	return pid;
}

static void test_owner_dies(void)
{
	struct engram_backing backing = fixture_shm();
	const struct engram_control_page *page;
	struct engram_control_owner *o;
	int fds = count_fds(), owned, fd;
	struct stat before, after;
	uint64_t epoch;
	char want[256];
	pid_t pid;

	CHECK_OK(engram_control_owned(&backing, instance, &owned, &err));
	CHECK(!owned);
	pid = start_owner();
	CHECK_OK(engram_control_owned(&backing, instance, &owned, &err));
	CHECK(owned);
	CHECK(engram_control_claim(&backing, instance, &o, &err) ==
	      ENGRAM_EBUSY);
	CHECK(engram_control_own(&backing, instance, &o, &err) == ENGRAM_EBUSY);
	snprintf(want, sizeof(want),
		 "instance \"%s\" belongs to the engramd with pid %d", instance,
		 (int)pid);
	CHECK_STR(err.message, want);
	CHECK_STR(err.fix, "stop it, or give this one another instance name");

	/* An old client keeps its mapping and sees the successor. */
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK_OK(engram_control_map_fd(fd, &page, &err));
	close(fd);
	epoch = engram_control_load64(&page->boot_epoch);
	CHECK(epoch && page->pid == pid);
	CHECK(engram_control_load64(&page->tables[0].generation) == 7);
	CHECK(!stat(path, &before));
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, NULL, 0) == pid);
	CHECK_OK(engram_control_owned(&backing, instance, &owned, &err));
	CHECK(!owned);
	/* Who only claims it keeps others out, and writes nothing. */
	CHECK_OK(engram_control_claim(&backing, instance, &o, &err));
	CHECK_OK(engram_control_owned(&backing, instance, &owned, &err));
	CHECK(owned && engram_control_load64(&page->boot_epoch) == epoch);
	engram_control_disown(o, 0);
	CHECK_OK(engram_control_own(&backing, instance, &o, &err));
	CHECK(!stat(path, &after) && before.st_ino == after.st_ino);
	CHECK(engram_control_load64(&page->boot_epoch) &&
	      engram_control_load64(&page->boot_epoch) != epoch);
	CHECK(engram_control_load64(&page->tables[0].generation) == 0);
	CHECK(page->pid == getpid() && !strcmp(page->instance, instance));
	engram_control_disown(o, 1);
	CHECK(engram_control_load64(&page->boot_epoch) == 0);
	engram_control_unmap(page);
	CHECK(access(path, F_OK) && count_fds() == fds);
}

/* Both start at once and hold what they win until told: one wins. */
static void contend(void)
{
	enum { N = 2 };
	struct engram_backing backing = fixture_shm();
	struct engram_control_owner *o;
	int go[2], done[2], winners = 0, i, status;
	pid_t pids[N];
	char c;

	CHECK(!pipe(go) && !pipe(done));
	for (i = 0; i < N; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0);
		if (pids[i])
			continue;
		close(go[1]);
		if (read(go[0], &c, 1) != 0)
			_exit(9);
		status = engram_control_own(&backing, instance, &o, NULL);
		if (write(done[1], status ? "l" : "w", 1) != 1)
			_exit(9);
		if (status)
			_exit(status == ENGRAM_EBUSY ? 0 : 9);
		for (;;)
			pause();
	}
	close(go[0]);
	close(go[1]);
	for (i = 0; i < N; i++) {
		CHECK(read(done[0], &c, 1) == 1);
		winners += c == 'w';
	}
	close(done[0]);
	close(done[1]);
	for (i = 0; i < N; i++) {
		kill(pids[i], SIGKILL);
		CHECK(waitpid(pids[i], &status, 0) == pids[i]);
		CHECK(WIFSIGNALED(status) || !WEXITSTATUS(status));
	}
	CHECK(winners == 1);
}

/* With no page, with a dead owner's, and with one to be replaced. */
static void test_contenders(void)
{
	int i, fd;

	for (i = 0; i < 50; i++) {
		if (i % 3 == 0)
			unlink(path);
		if (i % 3 == 1) {
			fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
			CHECK(fd >= 0 && !ftruncate(fd, 100));
			close(fd);
		}
		contend();
	}
	CHECK(!unlink(path));
}

static void *unlock_later(void *arg)
{
	const struct timespec wait = {.tv_nsec = 200000000};

	nanosleep(&wait, NULL);
	close(*(int *)arg);
	return NULL;
}

/* An owner that is gone while something still has its memory, and with that
 * the locked file. */
static void test_lock_outlives_owner(void)
{
	struct engram_backing backing = fixture_shm();
	struct engram_control_owner *o;
	pid_t pid = start_owner();
	pthread_t thread;
	int fd;

	kill(pid, SIGKILL);
	CHECK(waitpid(pid, NULL, 0) == pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && !flock(fd, LOCK_EX));
	CHECK(!pthread_create(&thread, NULL, unlock_later, &fd));
	CHECK_OK(engram_control_own(&backing, instance, &o, &err));
	CHECK(!pthread_join(thread, NULL));
	engram_control_disown(o, 1);
}

/* A page of another version is replaced, not written over. */
static void test_foreign_page(void)
{
	static const char *const texts[] = {"short", "ENRGMCT9"};
	struct engram_backing backing = fixture_shm();
	struct engram_control_owner *o;
	const struct engram_control_page *page;
	struct stat before, after;
	int fds = count_fds(), fd, i;

	for (i = 0; i < 2; i++) {
		fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		CHECK(fd >= 0 && write(fd, texts[i], strlen(texts[i])) > 0);
		if (i)
			CHECK(!ftruncate(fd, 20480));
		CHECK(engram_control_map_fd(fd, &page, &err) ==
		      (i ? ENGRAM_EDAMAGED : ENGRAM_ETOOSHORT));
		CHECK(!page && !fstat(fd, &before));
		CHECK_OK(engram_control_own(&backing, instance, &o, &err));
		CHECK(!stat(path, &after) && before.st_ino != after.st_ino);
		CHECK((after.st_mode & 07777) == 0640);
		engram_control_disown(o, 1);
		close(fd);
	}
	CHECK(count_fds() == fds);
}

#define PAGE_FIELD(name)                            \
	offsetof(struct engram_control_page, name), \
		sizeof(((struct engram_control_page *)0)->name)

/* What clients say of a page that is not one. */
static void test_damaged_page(void)
{
	static const struct {
		size_t at, size;
		uint64_t value;
		enum engram_status status;
		const char *message;
	} damages[] = {
		{PAGE_FIELD(magic), 0, ENGRAM_ENOTREADY,
		 "map control page: the page is still being written"},
		{PAGE_FIELD(magic), 1, ENGRAM_EDAMAGED,
		 "map control page: magic 0x0000000000000001: not a control "
		 "page of engramd"},
		{PAGE_FIELD(abi_version), 0, ENGRAM_ENOTREADY,
		 "map control page: the page is still being written"},
		{PAGE_FIELD(abi_version), 3, ENGRAM_EVERSION,
		 "map control page: the page has ABI version 3, this program "
		 "reads 2"},
		{PAGE_FIELD(page_bytes), 4096, ENGRAM_EDAMAGED,
		 "map control page: 4096 bytes with 64 tables, not 16632 with "
		 "64"},
		{PAGE_FIELD(num_tables), 65, ENGRAM_EDAMAGED,
		 "map control page: 16632 bytes with 65 tables, not 16632 with "
		 "64"},
	};
	struct engram_backing backing = fixture_shm();
	const struct engram_control_page *mapped;
	struct engram_control_page *page, good;
	struct engram_control_owner *o;
	int fd;
	size_t i;

	CHECK_OK(engram_control_own(&backing, instance, &o, &err));
	page = engram_control_owner_page(o);
	good = *page;
	CHECK_OK(engram_control_reopen(o, &fd, &err));
	for (i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		memcpy((char *)page + damages[i].at, &damages[i].value,
		       damages[i].size);
		CHECK(engram_control_map_fd(fd, &mapped, &err) ==
		      damages[i].status);
		CHECK_STR(err.message, damages[i].message);
		CHECK(!mapped && *err.fix);
		*page = good;
	}
	memset(page->instance, 'a', sizeof(page->instance));
	CHECK(engram_control_map_fd(fd, &mapped, &err) == ENGRAM_EDAMAGED);
	CHECK_STR(err.message,
		  "map control page: the instance name has no end");
	close(fd);
	CHECK(engram_control_map_fd(-1, &mapped, &err) == ENGRAM_ESYS);
	CHECK_STR(err.message, "map control page: fstat: Bad file descriptor");
	engram_control_disown(o, 1);
	engram_control_disown(NULL, 1);
	engram_control_unmap(NULL);
}

/* By name, in whatever slot; one that is free has no generation. */
static void test_generation(void)
{
	struct engram_backing backing = {.kind = ENGRAM_BACKING_MEMFD};
	struct engram_control_table *slots;
	struct engram_control_page *page;
	struct engram_control_owner *o;
	char longest[ENGRAM_NAME_MAX + 1];

	CHECK_OK(engram_control_own(&backing, instance, &o, &err));
	page = engram_control_owner_page(o);
	slots = page->tables;
	CHECK(engram_control_generation(page, "a") == 0);
	memset(longest, 'x', ENGRAM_NAME_MAX);
	longest[ENGRAM_NAME_MAX] = '\0';
	memcpy(slots[0].name, "ab", 3);
	memcpy(slots[1].name, "a", 2);
	memcpy(slots[ENGRAM_CONTROL_TABLES - 1].name, longest, sizeof(longest));
	engram_control_store64(&slots[0].generation, 3);
	engram_control_store64(&slots[1].generation, 4);
	engram_control_store64(&slots[ENGRAM_CONTROL_TABLES - 1].generation, 5);
	CHECK(engram_control_generation(page, "a") == 4);
	CHECK(engram_control_generation(page, "ab") == 3);
	CHECK(engram_control_generation(page, longest) == 5);
	CHECK(engram_control_generation(page, "abc") == 0);
	engram_control_disown(o, 1);
}

/* Two generations in turn; a reader sees no third. */
static void *publish(void *arg)
{
	struct engram_control_table *slot = arg;
	uint64_t i;

	for (i = 0; i < 200000; i++) {
		const uint64_t id[2] = {i % 2 + 1, ~(i % 2 + 1)};

		engram_control_publish(slot, i % 2 + 1, id);
	}
	return NULL;
}

/* A generation comes back, as with a rollback: its content id is its own. */
static void test_current(void)
{
	struct engram_backing backing = {.kind = ENGRAM_BACKING_MEMFD};
	static const uint64_t first[2] = {1, ~UINT64_C(1)};
	struct engram_control_table *slot;
	struct engram_control_page *page;
	struct engram_control_owner *o;
	uint64_t generation, id[2];
	pthread_t thread;

	CHECK_OK(engram_control_own(&backing, instance, &o, &err));
	page = engram_control_owner_page(o);
	slot = &page->tables[3];
	CHECK(!engram_control_current(page, "a", &generation, id));
	CHECK(!generation && !id[0] && !id[1]);
	memcpy(slot->name, "a", 2);
	CHECK(!engram_control_current(page, "a", &generation, id));
	engram_control_publish(slot, 1, first);
	CHECK(!pthread_create(&thread, NULL, publish, slot));
	while (engram_control_load64(&slot->sequence) < 400002)
		/* too many changes in a row look like one that never ends */
		if (engram_control_current(page, "a", &generation, id)) {
			CHECK(generation == 1 || generation == 2);
			CHECK(id[0] == generation && id[1] == ~generation);
		}
	CHECK(!pthread_join(thread, NULL));
	CHECK(engram_control_current(page, "a", &generation, id));
	CHECK(generation == 2 && id[0] == 2);

	/* One that died in between says nothing, and holds up nobody. */
	engram_control_store64(&slot->sequence, slot->sequence + 1);
	CHECK(!engram_control_current(page, "a", &generation, id));
	engram_control_publish(slot, 1, first);
	CHECK(engram_control_current(page, "a", &generation, id));

	/* Another table in the slot does not bring the sequence back. */
	generation = engram_control_load64(&slot->sequence);
	engram_control_clear(slot);
	CHECK(engram_control_load64(&slot->sequence) == generation);
	CHECK(!slot->name[0] && !slot->generation);
	engram_control_disown(o, 1);
}

/* An owner that steps down and leaves its page: the next one has it. */
static void test_page_left(void)
{
	struct engram_backing backing = fixture_shm();
	struct engram_control_owner *o;
	struct stat before, after;
	int owned;

	CHECK_OK(engram_control_own(&backing, instance, &o, &err));
	CHECK(!stat(path, &before));
	engram_control_disown(o, 0);
	CHECK_OK(engram_control_owned(&backing, instance, &owned, &err));
	CHECK(!owned);
	CHECK_OK(engram_control_own(&backing, instance, &o, &err));
	CHECK(!stat(path, &after) && before.st_ino == after.st_ino);
	engram_control_disown(o, 1);
	CHECK(access(path, F_OK));
}

static void test_memfd(void)
{
	struct engram_backing backing = {.kind = ENGRAM_BACKING_MEMFD};
	const struct engram_control_page *page;
	struct engram_control_owner *a, *b;
	int fds = count_fds(), fd;

	CHECK_OK(engram_control_own(&backing, instance, &a, &err));
	CHECK_OK(engram_control_own(&backing, instance, &b, &err));
	CHECK_OK(engram_control_reopen(a, &fd, &err));
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY);
	CHECK_OK(engram_control_map_fd(fd, &page, &err));
	close(fd);
	engram_control_add64(&engram_control_owner_page(a)->requests, 5);
	CHECK(engram_control_load64(&page->requests) == 5);
	engram_control_disown(a, 1);
	engram_control_disown(b, 0);
	engram_control_unmap(page);
	CHECK(count_fds() == fds);
}

int main(void)
{
	struct engram_backing backing = fixture_shm();
	struct engram_control_owner *o;

	fixture_instance(instance, "control");
	snprintf(path, sizeof(path), "/dev/shm/engramd.%s.ctl", instance);
	test_owner_dies();
	test_contenders();
	test_lock_outlives_owner();
	test_foreign_page();
	test_damaged_page();
	test_generation();
	test_current();
	test_page_left();
	test_memfd();
	CHECK(engram_control_own(&backing, "a.b", &o, &err) == ENGRAM_EINVAL);
	CHECK_STR(err.message, "\"a.b\" is no instance name");
	CHECK_STR(engram_table_state_name(ENGRAM_TABLE_FAILED), "failed");
	CHECK_STR(engram_table_state_name(99), "unknown");
	CHECK(count_names("/dev/shm", instance) == 0);
	return 0;
}
