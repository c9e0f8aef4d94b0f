-- For compose.yaml alone: the password of the role that sql/roles.sql makes.
ALTER ROLE postrider PASSWORD 'postrider';
